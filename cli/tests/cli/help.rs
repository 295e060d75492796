//! What the CLIs say about themselves.

use sandstack_api::{Authority, OPERATIONS};

use crate::expected::matches_file;
use crate::process::bare;

#[test]
fn help_is_as_checked_in() {
    for authority in Authority::ALL {
        let mut text = bare(authority).run(["help"]).out();
        for row in OPERATIONS.iter().filter(|row| row.authority == authority) {
            let run = bare(authority).run(["help", row.name]);
            assert_eq!(run.code, 0, "{run:?}");
            text.push_str(&format!("\n===== help {}\n\n{}", row.name, run.out()));
        }
        matches_file(&format!("help/{authority}.txt"), &text);
    }
}

#[test]
fn every_way_to_ask_for_help_answers_it_on_stdout() {
    for args in [
        vec!["help"],
        vec!["--help"],
        vec!["-h"],
        vec!["help", "exec_command"],
        vec!["help", "exec-command"],
        vec!["exec_command", "--help"],
        vec!["exec_command", "-h"],
        vec!["--version"],
        vec!["-V"],
    ] {
        let run = bare(Authority::Runtime).run(&args);
        assert_eq!(run.code, 0, "{args:?}: {run:?}");
        assert!(
            !run.stdout.is_empty() && run.stderr.is_empty(),
            "{args:?}: {run:?}"
        );
    }
}

#[test]
fn the_version_is_the_packages() {
    let run = bare(Authority::Management).run(["--version"]);
    assert_eq!(
        run.out(),
        format!("sandbox-manager-cli {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn completions_know_operations_flags_and_values() {
    for shell in ["bash", "zsh", "fish"] {
        let run = bare(Authority::Management).run(["completions", shell]);
        assert_eq!(run.code, 0, "{run:?}");
        let script = run.out();
        for word in ["create_sandbox", "trace-mode", "exact", "state-dir"] {
            assert!(script.contains(word), "{shell}: no {word}");
        }
    }
    let run = bare(Authority::Management).run(["completions", "tcsh"]);
    assert_eq!(run.code, 2, "{run:?}");
    assert!(run.message().contains("bash"), "{run:?}");
}

#[test]
fn bash_accepts_its_completion_script() {
    let script = bare(Authority::Runtime).run(["completions", "bash"]).stdout;
    let path = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(path.path(), script).expect("the script is written");
    let checked = std::process::Command::new("bash")
        .arg("-n")
        .arg(path.path())
        .output()
        .expect("bash runs");
    assert!(checked.status.success(), "{checked:?}");
}
