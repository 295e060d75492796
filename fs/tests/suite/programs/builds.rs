//! Builds: what was built before the session is not built again, what changed is, and what was just
//! written runs.

use std::path::Path;

use super::{FILES, compared, nothing};
use crate::fixture::MODES;

/// A workspace of a library, a program, and a program that runs while it is built; built once.
const WORKSPACE: &str = r#"
mkdir -p part/src whole/src
cat > Cargo.toml <<END
[workspace]
members = ["part", "whole"]
resolver = "2"
END
cat > part/Cargo.toml <<END
[package]
name = "part"
version = "0.1.0"
edition = "2021"
END
cat > whole/Cargo.toml <<END
[package]
name = "whole"
version = "0.1.0"
edition = "2021"
build = "build.rs"
[dependencies]
part = { path = "../part" }
END
echo 'pub fn answer() -> u32 { 42 }' > part/src/lib.rs
cat > whole/build.rs <<'END'
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR").unwrap());
    std::fs::write(out.join("made.rs"), "pub const MADE: u32 = 1;").unwrap();
}
END
cat > whole/src/main.rs <<'END'
include!(concat!(env!("OUT_DIR"), "/made.rs"));
fn main() { println!("{}", part::answer() + MADE); }
END
cargo build -q
"#;

/// What cargo says that it did, without how long it took.
const SAYING: &str = r#"
built() { cargo build -v 2>&1 | grep -oE '^ *(Fresh|Compiling|Dirty) [a-z]+' | tr -s ' ' | sort; }
"#;

/// Written by cargo in the order of a hash table.
fn has_an_order_of_its_own(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name == ".rustc_info.json"
        || (name.starts_with("dep-") && path.to_string_lossy().contains("/.fingerprint/"))
}

#[test]
fn cargo_builds_what_changed_and_no_more() {
    let name = "cargo_builds_what_changed_and_no_more";
    compared(name, &FILES, &["cargo", "cc"], WORKSPACE, |twins| {
        let build = format!("{SAYING} built; ./target/debug/whole");
        let nothing_to_do = " Fresh part\n Fresh whole\n43\n";
        assert_eq!(twins.run(&build), nothing_to_do);
        twins.run("echo 'pub fn answer() -> u32 { 64 }' > part/src/lib.rs");
        let both = twins.run(&build);
        assert!(
            both.contains(" Compiling part\n") && both.ends_with("\n65\n"),
            "{both}"
        );
        assert_eq!(twins.run(&build), " Fresh part\n Fresh whole\n65\n");
        twins.remount();
        assert_eq!(twins.run(&build), " Fresh part\n Fresh whole\n65\n");
        let one = twins.run(&format!("touch whole/src/main.rs; {build}"));
        assert!(
            one.contains(" Fresh part\n") && one.contains(" Compiling whole\n"),
            "{one}"
        );
        twins.run("cargo clean -q; ls target 2>/dev/null || echo gone");
        let all = twins.run(&build);
        assert!(
            all.contains(" Compiling part\n") && all.ends_with("\n65\n"),
            "{all}"
        );
        twins.compare(has_an_order_of_its_own);
    });
}

const PROJECT_IN_C: &str = r#"
cat > Makefile <<'END'
program: main.o part.o
	cc -o $@ $^
%.o: %.c part.h
	cc -c -o $@ $<
END
echo 'int part(void);' > part.h
printf '#include "part.h"\nint part(void) { return 3; }\n' > part.c
printf '#include "part.h"\nint main(void) { return part(); }\n' > main.c
make -s
"#;

#[test]
fn make_builds_what_changed_and_no_more() {
    let name = "make_builds_what_changed_and_no_more";
    compared(name, &MODES, &["make", "cc"], PROJECT_IN_C, |twins| {
        assert_eq!(twins.run("make -q; make -s; ./program || echo $?"), "3\n");
        let changed = r#"
            printf '#include "part.h"\nint part(void) { return 4; }\n' > part.c
            ! make -q
            make
            ./program || echo $?
            make -q
            touch part.h
            make
            make -q
        "#;
        assert!(twins.run(changed).contains("\n4\n"));
        twins.remount();
        twins.run("make -q");
        twins.compare(nothing);
    });
}

/// A program can be run as soon as it is written, not while it is written, and not written while it
/// is run; replaced by a rename it goes on.
#[test]
fn what_was_just_written_runs() {
    let fill = "cp \"$(readlink -f \"$(command -v sleep)\")\" base-sleep; echo plain > plain";
    compared(
        "what_was_just_written_runs",
        &MODES,
        &["setpriv"],
        fill,
        |twins| {
            twins.run(
            r#"
            for i in $(seq 100); do
                printf '#!/bin/sh\necho %s\n' $i > script
                chmod 755 script
                ./script
                cp base-sleep program
                ./program 0
                rm script program
            done
            cp base-sleep program
            exec 3>>program
            ./program 0 2>/dev/null || echo "written to: $?"
            exec 3>&-
            ./program 0
            for name in program base-sleep; do
                ./$name 600 &
                until [[ $(readlink /proc/$!/exe) = */$name ]]; do sleep 0.01; done
                (echo more >> $name) 2>/dev/null || echo 'runs, and is not written to'
                cp base-sleep other; mv other $name
                kill $!
                wait $! || echo "ended by $?"
            done
            chmod 644 base-sleep
            ./base-sleep 0 2>/dev/null || echo "not executable: $?"
            chmod 700 base-sleep
            setpriv --reuid 4001 --regid 4001 --clear-groups ./base-sleep 0 2>/dev/null || echo "not theirs: $?"
            chmod 755 plain
            [ "$(./plain 2>/dev/null || echo $?)" != 0 ] && echo 'no program'
            "#,
        );
            twins.compare(nothing);
        },
    );
}

/// Compiled modules have the time and size of their source.
#[test]
fn python_environments_work() {
    let fill = r#"
        mkdir package
        echo 'VALUE = 1' > package/__init__.py
        echo 'from package import VALUE' > package/part.py
        touch -d 2020-01-01T01:01:01 package/*.py
        python3 -m compileall -q package
    "#;
    let is_compiled = |path: &Path| path.extension().is_some_and(|ext| ext == "pyc");
    compared(
        "python_environments_work",
        &MODES,
        &["python3", "pydoc3"],
        fill,
        |twins| {
            twins.run(
            r#"
            show='import package.part; print(package.part.VALUE, package.__cached__)'
            before=$(stat -c '%i %Y %Z' package/__pycache__/*)
            python3 -c "$show"
            [ "$before" = "$(stat -c '%i %Y %Z' package/__pycache__/*)" ]
            echo 'VALUE = 2' > package/__init__.py
            python3 -c "$show"
            python3 -m venv --without-pip environment
            site=$(environment/bin/python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
            echo "$site"
            cp -r package "$site/installed"
            sed -i 's/from package/from installed/' "$site/installed/part.py"
            cd /
            "$OLDPWD/environment/bin/python3" -c 'import installed.part, sys; print(installed.part.VALUE, sys.prefix)'
            cd "$OLDPWD"
            . environment/bin/activate
            python3 -c 'import sys; print(sys.prefix != sys.base_prefix)'
            python3 -m compileall -q environment package
            deactivate
            python3 -m venv --without-pip --clear environment
            find environment -name installed
            "#,
        );
            twins.compare(is_compiled);
        },
    );
}
