//! `xfstests/wsctl`, by which scripts of faults drive any system: each of its verbs, once.

use std::path::Path;
use std::process::Command;

/// Told what is in the way of attaching views, which the adapter needs. `None`: nothing.
fn obstacle() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("root, who attaches views");
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>());
    let mut next = || numbers.next().and_then(Result::ok).unwrap_or(0);
    ((next(), next()) < (6, 15)).then_some("Linux 6.15, from which on a view can be attached twice")
}

const SCRIPT: &str = r#"
base=$1
ws=$($wsctl init "$base")
trap '$wsctl gone "$ws" || true' EXIT
a=$($wsctl open "$ws" a); b=$($wsctl open "$ws" b)
[ "$(cat "$a/text")" = "$(printf '1\n2\n3')" ]
[ "$($wsctl open "$ws" a)" = "$a" ]
echo input >"$base/../input"
[ "$($wsctl exec "$ws" a -i "$base/../input" -- cat)" = input ]
code=0; $wsctl exec "$ws" a -- sh -c 'exit 7' || code=$?; [ $code = 7 ]
code=0; $wsctl exec "$ws" a -- sh -c 'kill -9 $$' || code=$?; [ $code = 137 ]
code=0; $wsctl exec "$ws" a -t 1 -- sleep 100 || code=$?; [ $code = 124 ]
$wsctl execj "$ws" a -- sh -c 'echo out; echo err >&2; exit 3' |
    python3 -c 'import json, sys; r = json.load(sys.stdin); assert (r["exit_code"], r["stdout"], r["stderr"], r["timed_out"]) == (3, "out\n", "err\n", False), r'
sed -i s/1/one/ "$a/text"; rm "$a/gone"; echo new >"$a/new"
[ "$($wsctl changes "$ws" a | sort)" = "$(printf 'A new\nD gone\nM text')" ]
sed -i s/1/eins/ "$b/text"
$wsctl publish "$ws" a
code=0; said=$($wsctl publish "$ws" b) || code=$?
[ $code = 3 ] && [ "$said" = text ]
[ "$($wsctl blame "$ws" text)" = "$(printf 'a\tone\noriginal\t2\noriginal\t3')" ]
# It goes on, in the same place, on the head.
echo more >>"$a/new"; $wsctl publish "$ws" a; $wsctl squash "$ws"
mkdir "$base/../out"; $wsctl checkout "$ws" "$base/../out"
[ "$(cat "$base/../out/new")" = "$(printf 'new\nmore')" ] && [ ! -e "$base/../out/gone" ]
[ -d "$($wsctl store "$ws")" ]
$wsctl crash "$ws"; $wsctl up "$ws"
[ "$($wsctl exec "$ws" b -- head -1 text)" = eins ] && [ "$(head -1 "$b/text")" = eins ]
printf '%s\n' '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}' |
    $wsctl mcp "$ws" | grep -q serverInfo
$wsctl close "$ws" b; [ ! -e "$b" ]
trap - EXIT
$wsctl gone "$ws"; [ ! -e "$ws" ]
"#;

pub(crate) fn run() {
    if let Some(obstacle) = obstacle() {
        let ci = std::env::var_os("CI").is_some_and(|value| value == "true");
        assert!(
            !ci,
            "under CI nothing is skipped, but here is not: {obstacle}"
        );
        eprintln!("SKIPPED, NOT PASSED: the adapter for scripts: {obstacle}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("base");
    std::fs::create_dir(&base).unwrap();
    for (name, text) in [("text", "1\n2\n3\n"), ("gone", "g\n")] {
        std::fs::write(base.join(name), text).unwrap();
    }
    let bin = std::env::current_exe().unwrap();
    let bin = bin.ancestors().nth(2).unwrap();
    let wsctl = Path::new(env!("CARGO_MANIFEST_DIR")).join("../xfstests/wsctl");
    let output = Command::new("timeout")
        .args([
            "--kill-after=5",
            "240",
            "bash",
            "-euxo",
            "pipefail",
            "-c",
            SCRIPT,
            "adapter",
        ])
        .arg(&base)
        .env("wsctl", wsctl)
        .env("SANDSTACK_BIN", bin)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}
