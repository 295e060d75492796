//! `conformance`: runs suites of others on views and holds what they find to a strict baseline.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};
use sandstack_xfstests::baseline::{Baseline, Outcome, Results, Verdict};
use sandstack_xfstests::fsx::Fsx;
use sandstack_xfstests::pjdfstest::Pjdfstest;
use sandstack_xfstests::pjdfstest_c::PjdfstestC;
use sandstack_xfstests::unionmount::Unionmount;
use sandstack_xfstests::view::Serving;
use sandstack_xfstests::xfstests::Xfstests;

/// Runs suites of others on views; as root.
#[derive(Parser)]
#[command(name = "conformance", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    judge: Judge,
    #[command(flatten)]
    place: Place,
}

#[derive(Args)]
struct Place {
    /// The program that serves views; default the one beside this.
    #[arg(long, global = true)]
    sandbox_fs: Option<PathBuf>,
    /// auto, fuse or uring.
    #[arg(
        long,
        global = true,
        default_value = "auto",
        env = "SANDSTACK_TRANSPORT"
    )]
    transport: String,
    /// off, session, files or exact.
    #[arg(long, global = true, default_value = "files")]
    trace: String,
    /// What is expected; default xfstests/expected.toml.
    #[arg(long, global = true)]
    baseline: Option<PathBuf>,
    /// A directory for views and logs; default `sst-suites` in that for temporary files.
    /// What a suite left in it is removed when it is run again. Its path should be short: some tests
    /// bind sockets, whose paths have 107 bytes at most.
    #[arg(long, global = true)]
    dir: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Judge {
    /// The suite pjdfstest, on a new session and over a populated base.
    Pjdfstest {
        /// The program.
        #[arg(long, default_value = "pjdfstest")]
        program: PathBuf,
        /// Names of tests, or parts of them.
        tests: Vec<String>,
    },
    /// The exerciser fsx, with remounts in between.
    Fsx {
        /// The program.
        #[arg(long, default_value = "fsx")]
        program: PathBuf,
        /// Operations, for all seeds together.
        #[arg(long, default_value_t = 1_000_000)]
        operations: u64,
        /// Random programs.
        #[arg(long, default_value_t = 4)]
        seeds: u64,
    },
    /// Generic tests of xfstests.
    Xfstests {
        /// The directory with `check`.
        #[arg(long)]
        installed: PathBuf,
        /// A group of tests, such as generic/quick.
        #[arg(long, conflicts_with = "tests")]
        group: Option<String>,
        /// Seconds that a test may take.
        #[arg(long, default_value_t = 600)]
        limit: u64,
        /// Tests, such as generic/001; default those of xfstests/tests.list.
        tests: Vec<String>,
    },
    /// The suite that pjdfstest was made after, in C and shell.
    PjdfstestC {
        /// The directory in which it was built.
        #[arg(long)]
        installed: PathBuf,
    },
    /// The test suite for union mounts.
    Unionmount {
        /// The directory with `run`.
        #[arg(long)]
        installed: PathBuf,
    },
    /// All of them that are installed. With CI=true, one that is not is a fault.
    All {
        /// The directory of an installed xfstests.
        #[arg(long)]
        xfstests: Option<PathBuf>,
        /// The directory of a built pjdfstest in C.
        #[arg(long)]
        pjdfstest_c: Option<PathBuf>,
        /// The directory of the unionmount test suite.
        #[arg(long)]
        unionmount: Option<PathBuf>,
        /// Operations of fsx.
        #[arg(long, default_value_t = 1_000_000)]
        operations: u64,
    },
}

/// Where this package is in the tree.
const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// Bytes that a session may change. Some tests fill whatever room there is.
const QUOTA: u64 = 8 << 30;

/// A line of the summary.
struct Row {
    suite: String,
    verdict: Verdict,
    seconds: u64,
}

struct Run {
    serving: Serving,
    dir: PathBuf,
    baseline: Baseline,
    rows: Vec<Row>,
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            say(&format!("conformance: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn run() -> io::Result<bool> {
    let cli = Cli::parse();
    let program = match cli.place.sandbox_fs {
        Some(program) => program,
        None => std::env::current_exe()?.with_file_name("sandbox-fs"),
    };
    let baseline = cli
        .place
        .baseline
        .unwrap_or_else(|| Path::new(HERE).join("expected.toml"));
    let dir = cli
        .place
        .dir
        .unwrap_or_else(|| std::env::temp_dir().join("sst-suites"));
    let text = fs::read_to_string(&baseline)?;
    let mut run = Run {
        serving: Serving {
            program: std::path::absolute(program)?,
            transport: cli.place.transport,
            trace: cli.place.trace,
            quota: QUOTA,
        },
        dir: std::path::absolute(dir)?,
        baseline: Baseline::parse(&text)
            .map_err(|error| io::Error::other(format!("{}: {error}", baseline.display())))?,
        rows: Vec::new(),
    };
    match cli.judge {
        Judge::Pjdfstest { program, tests } => run.pjdfstest(program, &tests)?,
        Judge::Fsx {
            program,
            operations,
            seeds,
        } => run.fsx(program, operations, seeds)?,
        Judge::Xfstests {
            installed,
            group,
            limit,
            tests,
        } => run.xfstests(&installed, group.as_deref(), limit, tests)?,
        Judge::PjdfstestC { installed } => run.pjdfstest_c(&installed)?,
        Judge::Unionmount { installed } => run.unionmount(&installed)?,
        Judge::All {
            xfstests,
            pjdfstest_c,
            unionmount,
            operations,
        } => {
            run.programs(operations)?;
            run.directories(
                pjdfstest_c.as_deref(),
                unionmount.as_deref(),
                xfstests.as_deref(),
            )?;
        }
    }
    Ok(run.summary())
}

impl Run {
    /// The suites that are programs, if they are in `PATH`.
    fn programs(&mut self, operations: u64) -> io::Result<()> {
        match installed("pjdfstest") {
            Some(program) => self.pjdfstest(program, &[])?,
            None => self.lacks("pjdfstest", "`cargo install pjdfstest --locked`"),
        }
        match installed("fsx") {
            Some(program) => self.fsx(program, operations, 4)?,
            None => self.lacks("fsx", "`cargo install fsx --locked`"),
        }
        Ok(())
    }

    /// The suites that are used where they were built.
    fn directories(
        &mut self,
        pjdfstest_c: Option<&Path>,
        unionmount: Option<&Path>,
        xfstests: Option<&Path>,
    ) -> io::Result<()> {
        match pjdfstest_c {
            Some(installed) => self.pjdfstest_c(installed)?,
            None => self.lacks("pjdfstest-c", "PJDFSTEST_C=DIR, where it was built"),
        }
        match unionmount {
            Some(installed) => self.unionmount(installed)?,
            None => self.lacks("unionmount", "UNIONMOUNT=DIR, which has its `run`"),
        }
        match xfstests {
            Some(installed) => self.xfstests(installed, None, 600, Vec::new())?,
            None => self.lacks("xfstests", "XFSTESTS=DIR, a directory that has its `check`"),
        }
        Ok(())
    }

    fn pjdfstest(&mut self, program: PathBuf, tests: &[String]) -> io::Result<()> {
        let suite = Pjdfstest {
            program,
            tests: tests.to_vec(),
        };
        for populated in [false, true] {
            let name = if populated {
                "pjdfstest-base"
            } else {
                "pjdfstest"
            };
            let place = self.place(name)?;
            let start = Instant::now();
            let results = suite.run(&self.serving, &place, populated)?;
            self.judge(name, "pjdfstest", &results, start);
        }
        Ok(())
    }

    fn fsx(&mut self, program: PathBuf, operations: u64, seeds: u64) -> io::Result<()> {
        let suite = Fsx {
            program,
            operations,
            seeds: seeds.max(1),
        };
        let place = self.place("fsx")?;
        let start = Instant::now();
        let results = suite.run(&self.serving, &place)?;
        self.judge("fsx", "fsx", &results, start);
        Ok(())
    }

    fn pjdfstest_c(&mut self, installed: &Path) -> io::Result<()> {
        let suite = PjdfstestC {
            installed: std::path::absolute(installed)?,
        };
        let place = self.place("pjdfstest-c")?;
        let start = Instant::now();
        let results = suite.run(&self.serving, &place)?;
        self.judge("pjdfstest-c", "pjdfstest-c", &results, start);
        Ok(())
    }

    fn unionmount(&mut self, installed: &Path) -> io::Result<()> {
        let suite = Unionmount {
            installed: std::path::absolute(installed)?,
            harness: Path::new(HERE).join("harness"),
        };
        let place = self.place("unionmount")?;
        let start = Instant::now();
        let results = suite.run(&self.serving, &place)?;
        self.judge("unionmount", "unionmount", &results, start);
        Ok(())
    }

    fn xfstests(
        &mut self,
        installed: &Path,
        group: Option<&str>,
        limit: u64,
        mut tests: Vec<String>,
    ) -> io::Result<()> {
        let suite = Xfstests {
            installed: std::path::absolute(installed)?,
            harness: Path::new(HERE).join("harness"),
            limit: Duration::from_secs(limit),
        };
        if let Some(group) = group {
            tests = suite.group(group)?;
        } else if tests.is_empty() {
            let list = fs::read_to_string(Path::new(HERE).join("tests.list"))?;
            let lines = list.lines().filter(|line| !line.starts_with('#'));
            tests = lines.map(str::to_owned).collect();
        }
        let tests: Vec<String> = tests
            .into_iter()
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect();
        let place = self.place("xfstests")?;
        let start = Instant::now();
        let mut done = 0;
        let results = suite.run(&self.serving, &place, &tests, |test, outcome| {
            done += 1;
            say(&format!("{done}/{} {test}: {}", tests.len(), word(outcome)));
        })?;
        self.judge("xfstests", "xfstests", &results, start);
        Ok(())
    }

    /// An empty directory for a suite. What is mounted in it is an error, and removes nothing.
    fn place(&self, name: &str) -> io::Result<PathBuf> {
        let place = self.dir.join(name);
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let inside = |line: &str| {
            let point = line.split(' ').nth(4).unwrap_or_default();
            Path::new(point).starts_with(&place)
        };
        if let Some(line) = mounts.lines().find(|line| inside(line)) {
            return Err(io::Error::other(format!("something is mounted: {line}")));
        }
        match fs::remove_dir_all(&place) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::create_dir_all(&place)?;
        Ok(place)
    }

    fn judge(&mut self, name: &str, suite: &str, results: &Results, start: Instant) {
        let verdict = self.baseline.of(suite).judge(results);
        for fault in &verdict.faults {
            say(&format!("FAULT: {name}: {fault}"));
        }
        self.rows.push(Row {
            suite: name.to_owned(),
            verdict,
            seconds: start.elapsed().as_secs(),
        });
    }

    /// Says loudly that a suite is not installed; under CI that is a fault.
    fn lacks(&mut self, suite: &str, how: &str) {
        say(&format!("NOT RUN: {suite} is not installed: {how}"));
        let mut verdict = Verdict::default();
        if std::env::var_os("CI").is_some_and(|value| value == "true") {
            verdict.faults.push("not installed".to_owned());
        }
        self.rows.push(Row {
            suite: format!("{suite} (NOT INSTALLED)"),
            verdict,
            seconds: 0,
        });
    }

    /// Prints what each suite found. Returns whether all is as expected.
    fn summary(&self) -> bool {
        say(&format!(
            "\n{:28} {:>7} {:>7} {:>8} {:>7} {:>8}",
            "suite", "passed", "failed", "skipped", "faults", "seconds"
        ));
        for row in &self.rows {
            let verdict = &row.verdict;
            say(&format!(
                "{:28} {:>7} {:>7} {:>8} {:>7} {:>8}",
                row.suite,
                verdict.passed,
                verdict.failed,
                verdict.skipped,
                verdict.faults.len(),
                row.seconds
            ));
        }
        self.rows.iter().all(|row| row.verdict.faults.is_empty())
    }
}

fn word(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Passed => "passed".to_owned(),
        Outcome::Failed(said) => format!("FAILED: {said}"),
        Outcome::Skipped(said) => format!("skipped: {said}"),
        Outcome::Hung => "HUNG".to_owned(),
    }
}

/// The program `name` in a directory of `PATH`; `None` if it is in none.
fn installed(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|program| program.is_file())
}

/// If nobody listens any more there is nobody to tell.
fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}
