//! `bench`: compares views with the disk, kernel overlayfs and fuse-overlayfs, and measures what
//! operations cost. `docs/benchmarking.md` says how to read it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::{Args, Parser, Subcommand};
use sandstack_benches::baseline::Baseline;
use sandstack_benches::input::{Base, Inputs};
use sandstack_benches::outcome::Outcome;
use sandstack_benches::peer::{Ground, Peer, clear};
use sandstack_benches::run::Plan;
use sandstack_benches::{Result, cost, daemon, measure, plot, rows, tell};
use sandstack_fs::Transport;

/// Compares views with other filesystems, and measures what operations cost.
#[derive(Parser)]
#[command(name = "bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Option<Subcommands>,
    #[command(flatten)]
    options: Options,
}

#[derive(Subcommand)]
enum Subcommands {
    /// Lists the rows, the peers and the groups of costs.
    List,
    /// Compares results with a baseline; ends with 1 if something is worse.
    Check {
        /// Results, as a run writes them.
        #[arg(long)]
        results: PathBuf,
        /// The baseline.
        #[arg(long)]
        baseline: PathBuf,
        /// Write the results into the baseline instead.
        #[arg(long)]
        update: bool,
    },
    /// Serves views, told what to do by its input.
    #[command(hide = true)]
    Serve {
        /// The store.
        store: PathBuf,
    },
}

#[derive(Args)]
struct Options {
    /// Where inputs and places are; on the disk that is to be measured.
    #[arg(long, default_value = "target/bench")]
    dir: PathBuf,
    /// Where files for the tree are taken from; default the sources that cargo has downloaded.
    #[arg(long)]
    sources: Option<PathBuf>,
    /// Rows; default all.
    #[arg(long, value_delimiter = ',')]
    rows: Vec<String>,
    /// Peers; default all.
    #[arg(long, value_delimiter = ',')]
    peers: Vec<Peer>,
    /// Rounds.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Groups of costs; default all, and none where rows are named.
    #[arg(long, value_delimiter = ',')]
    costs: Vec<String>,
    /// Only rows.
    #[arg(long)]
    no_costs: bool,
    /// Only costs.
    #[arg(long)]
    no_rows: bool,
    /// Layers on which costs are measured, beside 1 and 100.
    #[arg(long, default_value_t = 1_000)]
    layers: u32,
    /// Files of the huge base among the costs; 0 leaves it out.
    #[arg(long, default_value_t = 0)]
    huge: u32,
    /// Rows of the access log among the costs; 0 leaves it out.
    #[arg(long, default_value_t = 10_000_000)]
    records: u32,
    /// Where results go: `results.json` and `ratios.svg`; default the directory of `--dir`.
    #[arg(long)]
    out: Option<PathBuf>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        Some(Subcommands::List) => {
            list();
            Ok(ExitCode::SUCCESS)
        }
        Some(Subcommands::Check {
            results,
            baseline,
            update,
        }) => check(&results, &baseline, update),
        Some(Subcommands::Serve { store }) => daemon::serve(&store).map(|()| ExitCode::SUCCESS),
        None => compare(&cli.options).map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| {
        tell(&format!("bench: {error}"));
        ExitCode::from(2)
    })
}

fn list() {
    tell("Rows:");
    for row in rows::all() {
        tell(&format!("  {:<16}{}", row.name, row.about));
    }
    let peers: Vec<&str> = Peer::ALL.iter().map(|peer| peer.as_str()).collect();
    tell(&format!("Peers: {}", peers.join(", ")));
    tell(&format!("Costs: {}", cost::GROUPS.join(", ")));
}

fn check(results: &Path, baseline: &Path, update: bool) -> Result<ExitCode> {
    let outcome: Outcome = read(results)?;
    if update {
        let mut kept: Baseline = if baseline.exists() {
            read(baseline)?
        } else {
            Baseline::default()
        };
        kept.update(Baseline::from(&outcome));
        let mut text = serde_json::to_string_pretty(&kept)?;
        text.push('\n');
        fs::write(baseline, text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let kept: Baseline = read(baseline)?;
    let missing = kept.missing(&outcome);
    if !missing.is_empty() {
        tell(&format!("not measured: {}", missing.join(", ")));
    }
    let worse = kept.worse(&outcome);
    for row in &worse {
        tell(&format!(
            "{} {}: {:.2} of overlayfs, was {:.2}; {:.2} would have passed",
            row.result, row.peer, row.now, row.before, row.limit
        ));
    }
    if worse.is_empty() {
        tell("nothing is worse than the baseline");
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::FAILURE)
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let text = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    serde_json::from_slice(&text).map_err(|error| format!("{}: {error}", path.display()).into())
}

fn compare(options: &Options) -> Result<()> {
    if cfg!(debug_assertions) {
        return Err(
            "this is no release build, and would measure its assertions; use `make bench`".into(),
        );
    }
    fs::create_dir_all(&options.dir)?;
    let dir = fs::canonicalize(&options.dir)?;
    let out = options.out.clone().unwrap_or_else(|| dir.clone());
    fs::create_dir_all(&out)?;
    let watched = dir.clone();
    measure::watch(move || clear(&watched));

    let plan = Plan {
        rows: if options.no_rows {
            Vec::new()
        } else {
            rows::chosen(&options.rows)?
        },
        peers: peers(&options.peers)?,
        rounds: options.rounds.max(1),
    };
    let mut bases = plan.bases();
    bases.push(Base::Tree);
    let costs = !options.no_costs && (options.rows.is_empty() || !options.costs.is_empty());
    if costs {
        bases.push(Base::Big);
    }
    let inputs = Inputs::prepare(&dir.join("inputs"), &sources(options)?, &bases)?;

    let mut outcome = Outcome {
        about: about(options),
        ..Outcome::default()
    };
    if !plan.rows.is_empty() {
        let mut ground = Ground::new(&dir.join("ground"))?;
        let ran = plan.run(&mut ground, &inputs, &mut |result| {
            outcome.results.push(result);
            // What was measured is kept, whatever comes after it.
            if let Err(error) = write(&outcome, &out) {
                tell(&format!("bench: {error}"));
            }
        });
        drop(ground);
        clear(&dir.join("ground"));
        ran?;
        fs::remove_dir_all(dir.join("ground"))?;
    }
    if costs {
        outcome.costs = cost::measure(
            &options.costs,
            &dir,
            &inputs,
            cost::Options {
                times: options.rounds.max(1),
                layers: options.layers,
                huge: options.huge,
                records: options.records,
            },
        )?;
    }
    write(&outcome, &out)?;
    tell(&format!("\n{}", outcome.tables()));
    tell(&format!(
        "Written to {} and ratios.svg beside it.",
        out.join("results.json").display()
    ));
    Ok(())
}

/// The peers that are asked for; without any, all that can be had here. One that is left out is told.
fn peers(asked: &[Peer]) -> Result<Vec<Peer>> {
    let has_fuse_overlayfs = Command::new("fuse-overlayfs")
        .arg("--version")
        .output()
        .is_ok();
    let uring = Transport::uring_obstacle();
    if asked.is_empty() {
        if !has_fuse_overlayfs {
            tell("fuse-overlayfs is not installed and left out");
        }
        if let Some(obstacle) = &uring {
            tell(&format!("views over io_uring are left out: {obstacle}"));
        }
        return Ok(Peer::ALL
            .into_iter()
            .filter(|peer| *peer != Peer::FuseOverlayfs || has_fuse_overlayfs)
            .filter(|peer| !is_over_uring(*peer) || uring.is_none())
            .collect());
    }
    if let Some(obstacle) = uring
        && asked.iter().any(|peer| is_over_uring(*peer))
    {
        return Err(obstacle.into());
    }
    if asked.contains(&Peer::FuseOverlayfs) && !has_fuse_overlayfs {
        return Err("fuse-overlayfs is not installed".into());
    }
    Ok(asked.to_vec())
}

fn is_over_uring(peer: Peer) -> bool {
    peer.view()
        .is_some_and(|(_, transport)| transport == Transport::Uring)
}

fn sources(options: &Options) -> Result<PathBuf> {
    if let Some(sources) = &options.sources {
        return Ok(sources.clone());
    }
    let home = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")))
        .ok_or("neither CARGO_HOME nor HOME is set; name a directory with --sources")?;
    Ok(home.join("registry/src"))
}

fn about(options: &Options) -> BTreeMap<String, String> {
    let said = |program: &str, arguments: &[&str]| -> String {
        Command::new(program)
            .args(arguments)
            .output()
            .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
            .unwrap_or_default()
    };
    let processors = std::thread::available_parallelism().map_or(0, |count| count.get());
    BTreeMap::from([
        ("kernel".to_owned(), said("uname", &["-rm"])),
        ("processors".to_owned(), processors.to_string()),
        ("rounds".to_owned(), options.rounds.to_string()),
        (
            "commit".to_owned(),
            said("git", &["describe", "--always", "--dirty"]),
        ),
        ("git".to_owned(), said("git", &["--version"])),
        (
            "fuse-overlayfs".to_owned(),
            said("fuse-overlayfs", &["--version"])
                .lines()
                .find(|line| line.starts_with("fuse-overlayfs"))
                .unwrap_or("none")
                .to_owned(),
        ),
    ])
}

fn write(outcome: &Outcome, out: &Path) -> Result<()> {
    fs::write(
        out.join("results.json"),
        serde_json::to_string_pretty(outcome)?,
    )?;
    Ok(fs::write(out.join("ratios.svg"), plot::svg(outcome))?)
}
