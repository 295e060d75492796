//! Isolation, as an attacker inside a session sees it: what one session gets of another, of the gateway and
//! of the host. docs/security.md has the table of these attempts.
//!
//! A victim works in one session, with a secret wherever a session can have one. In another session of
//! the same sandbox, and in one of another sandbox, `attacker.py` tries everything that it knows.

mod paths;

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use serde_json::{Value, json};

use crate::rig::{Rig, Setup, docker_image, is_root, until};

/// What nobody but the victim may get hold of.
const SECRET: &str = "the-victims-secret-4711";

/// The key of the victim's segment of shared memory.
const KEY: u32 = 0x5a17;

/// A session at work that has its secret everywhere.
const VICTIM: &str = r#"
import ctypes, os, socket, sys, time
secret, key, abstract = sys.argv[1], int(sys.argv[2]), sys.argv[3]
for path in ["secret.txt", "/tmp/secret", "/var/tmp/secret", "/dev/shm/secret", "/run/secret", os.path.expanduser("~/secret")]:
    try:
        with open(path, "w") as file: file.write(secret)
    except PermissionError: assert path == "/run/secret", path
libc = ctypes.CDLL(None, use_errno=True)
assert libc.shmget(key, 4096, 0o1666) >= 0
service = socket.socket(socket.AF_UNIX); service.bind("service.sock"); service.listen()
name = socket.socket(socket.AF_UNIX); name.bind("\0" + abstract); name.listen()
tcp = socket.socket(); tcp.bind(("127.0.0.1", 0)); tcp.listen()
print("port", tcp.getsockname()[1], flush=True)
sys.stdin.readline()
assert open("secret.txt").read() == secret and open("/tmp/secret").read() == secret
print("unharmed", flush=True)
"#;

/// Where an attack is made.
struct Case<'a> {
    setup: Setup<'a>,
    image: Option<&'a str>,
}

#[test]
fn an_attacker_gets_nothing_in_local_sandboxes() {
    attack(&Case {
        setup: Setup::default(),
        image: None,
    });
}

#[test]
fn an_attacker_gets_nothing_from_an_ordinary_users_gateway() {
    attack(&Case {
        setup: Setup {
            ordinary: true,
            ..Setup::default()
        },
        image: None,
    });
}

#[test]
fn an_attacker_gets_nothing_in_docker_sandboxes() {
    let Some(image) = docker_image() else { return };
    attack(&Case {
        setup: Setup::default(),
        image: Some(image),
    });
}

fn attack(case: &Case<'_>) {
    let rig = Rig::start_as(Setup {
        outside: true,
        longer: std::time::Duration::from_secs(120),
        ..case.setup
    });
    let project = rig.project("project", &[("a", b"one\n")]);
    let sandbox = rig.sandbox_in(&project, case.image, json!({}));
    let other = rig.sandbox_in(&project, case.image, json!({}));
    let victim = Victim::start(&rig, &sandbox);
    let host = Host::listen(&rig);
    for network in ["shared", "isolated"] {
        for sandbox in [&sandbox, &other] {
            let found = run_attacker(&rig, case, sandbox, network, &victim, &host);
            let open: BTreeMap<_, _> = found.iter().filter(|(_, how)| how.0 == "open").collect();
            let names: BTreeSet<&str> = open.keys().map(|name| name.as_str()).collect();
            let allowed = allowed(case, network, sandbox == &victim.sandbox);
            let beyond: Vec<_> = names
                .iter()
                .filter(|name| !allowed.contains(*name))
                .map(|name| (name, &open[&(*name).to_owned()].1))
                .collect();
            assert!(
                beyond.is_empty(),
                "with the network {network}: {beyond:#?}\n{found:#?}"
            );
            // What an attempt fails for is not that it was made wrongly.
            if network == "shared" && case.image.is_none() {
                assert!(names.contains("loopback_of_the_host"), "{found:#?}");
            }
        }
    }
    victim.is_unharmed();
    let destroyed = json!({ "sandbox_id": other, "force": true });
    rig.call("destroy_sandbox", destroyed).ok();
    let destroyed = json!({ "sandbox_id": sandbox, "force": true });
    rig.call("destroy_sandbox", destroyed).ok();
    rig.assert_no_debris();
}

/// What security.md says to be open.
fn allowed(case: &Case<'_>, network: &str, same_sandbox: bool) -> BTreeSet<&'static str> {
    let mut allowed = BTreeSet::new();
    if network == "shared" {
        allowed.insert("network_of_the_host");
        if case.image.is_none() {
            allowed.insert("loopback_of_the_host");
        }
        if case.image.is_none() || same_sandbox {
            allowed.insert("loopback_of_another_session");
        }
        if !abstract_sockets_are_fenced() {
            allowed.insert("abstract_sockets");
        }
    } else if case.image.is_some() || (is_root() && !case.setup.ordinary) {
        // Of its own network, which has nothing in it.
        allowed.insert("raw_packets");
    }
    allowed
}

/// Whether the kernel has Landlock's scopes, which came with its ABI 6.
fn abstract_sockets_are_fenced() -> bool {
    const VERSION: libc::c_long = 1;
    // SAFETY: asked for its version, the call takes no attributes.
    let abi = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, 0, 0, VERSION) };
    abi >= 6
}

/// What of the host a session must not reach.
struct Host {
    tcp: TcpListener,
    name: String,
    _abstract: UnixListener,
}

impl Host {
    fn listen(rig: &Rig) -> Host {
        let name = format!("host-{}", rig.dir.file_name().unwrap().display());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        Host {
            tcp: TcpListener::bind("127.0.0.1:0").unwrap(),
            _abstract: UnixListener::bind_addr(&address).unwrap(),
            name,
        }
    }
}

struct Victim<'r> {
    rig: &'r Rig,
    sandbox: String,
    command: Value,
    port: String,
}

impl<'r> Victim<'r> {
    fn start(rig: &'r Rig, sandbox: &str) -> Victim<'r> {
        let session = rig.session(sandbox);
        write(rig, sandbox, &session, "victim.py", VICTIM);
        let abstract_name = format!("victim-{}", rig.dir.file_name().unwrap().display());
        let request = json!({
            "sandbox_id": sandbox, "workspace_session_id": session, "tty": false,
            "cmd": format!("exec python3 victim.py {SECRET} {KEY} {abstract_name}"),
            "env": { "VICTIM": SECRET }, "keep_stdin_open": true, "yield_time_ms": 0,
        });
        let command = rig.call("exec_command", request).ok();
        let mut port = None;
        until("the victim's port", || {
            let request = json!({ "command_session_id": command["command_session_id"] });
            let lines = rig.call("read_command_lines", request).ok();
            let line = lines["lines"][0]["content"].as_str();
            port = line
                .and_then(|line| line.strip_prefix("port "))
                .map(str::to_owned);
            port.is_some()
        });
        Victim {
            rig,
            sandbox: sandbox.to_owned(),
            command,
            port: port.unwrap(),
        }
    }

    fn is_unharmed(&self) {
        let request = json!({ "command_session_id": self.command["command_session_id"],
            "stdin": "\n", "eof": true, "yield_time_ms": 30_000 });
        let ended = self.rig.call("write_command_stdin", request).ok();
        assert_eq!(ended["exit_code"], 0, "{ended:#}");
        let said = ended["output"]["content"].as_str().unwrap();
        assert!(said.contains("unharmed"), "{ended:#}");
    }
}

fn write(rig: &Rig, sandbox: &str, session: &str, path: &str, content: &str) {
    let request = json!({ "sandbox_id": sandbox, "workspace_session_id": session,
        "path": path, "content": content });
    rig.call("file_write", request).ok();
}

/// Each attempt with whether it is held or open, and why or what.
fn run_attacker(
    rig: &Rig,
    case: &Case<'_>,
    sandbox: &str,
    network: &str,
    victim: &Victim<'_>,
    host: &Host,
) -> BTreeMap<String, (String, String)> {
    let request = json!({ "sandbox_id": sandbox, "network_profile": network });
    let session = rig.call("create_workspace_session", request).ok();
    let session = session["workspace_session_id"].as_str().unwrap().to_owned();
    write(
        rig,
        sandbox,
        &session,
        "attacker.py",
        include_str!("attacker.py"),
    );
    let all_ids = case.image.is_some() || (is_root() && !case.setup.ordinary);
    let facts = [
        ("secret", SECRET.to_owned()),
        ("state", rig.state().display().to_string()),
        ("workspace", rig.dir.join("project").display().to_string()),
        ("sandbox", victim.sandbox.clone()),
        ("marker", "victim.py".to_owned()),
        ("key", KEY.to_string()),
        ("port", host.tcp.local_addr().unwrap().port().to_string()),
        ("service", victim.port.clone()),
        ("abstract", host.name.clone()),
        ("all_ids", if all_ids { "yes" } else { "no" }.to_owned()),
        (
            "provider",
            if case.image.is_some() {
                "docker"
            } else {
                "local"
            }
            .to_owned(),
        ),
    ];
    let words: Vec<String> = facts
        .iter()
        .map(|(key, value)| format!("{key}='{value}'"))
        .collect();
    let cmd = format!("python3 attacker.py {}", words.join(" "));
    let said = rig.sh(sandbox, &session, &cmd);
    let mut found = BTreeMap::new();
    let mut attempts = 0;
    for line in said.lines() {
        let mut words = line.splitn(3, ' ').map(str::to_owned);
        let (how, name) = (words.next().unwrap(), words.next().unwrap());
        if how == "end" {
            attempts = name.parse().unwrap();
        } else {
            let why = words.next().unwrap_or_default();
            found.insert(name, (how, why));
        }
    }
    assert!(attempts > 50 && found.len() == attempts, "{said}");
    found
}
