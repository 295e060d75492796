//! Tokens and authorities.

use std::os::unix::fs::PermissionsExt;

use sandstack_api::Authority;
use sandstack_api::catalogue::OPERATIONS;
use serde_json::json;

use crate::rig::Rig;

const AUTHORITIES: [Authority; 3] = [
    Authority::Management,
    Authority::Runtime,
    Authority::Observability,
];

#[test]
fn every_operation_wants_a_token_of_its_own_authority() {
    let rig = Rig::start();
    for operation in OPERATIONS.iter().map(|row| row.operation) {
        let (name, needed) = (operation.as_str(), operation.row().authority);
        for authority in AUTHORITIES.into_iter().filter(|other| *other != needed) {
            // The authority is judged before the body is.
            let answer = rig.post(name, Some(&rig.token(authority)), b"not json");
            let message = answer.refused("forbidden");
            assert_eq!(answer.status, 403, "{name}");
            assert!(message.contains(&needed.to_string()), "{name}: {message}");
        }
        let answer = rig.post(name, None, b"{}");
        assert!(
            answer
                .refused("unauthorized")
                .contains("Authorization: Bearer"),
            "{name}"
        );
        assert_eq!(answer.status, 401, "{name}");
    }
}

#[test]
fn a_wrong_token_is_refused_whatever_it_looks_like() {
    let rig = Rig::start();
    let right = rig.token(Authority::Management);
    let cut = &right[..right.len() - 1];
    let long = format!("{right}0");
    let big = "x".repeat(7000);
    for wrong in ["", "sst_", cut, &long, &right.to_uppercase(), "Basic", &big] {
        rig.post("list_sandboxes", Some(wrong), b"{}")
            .refused("unauthorized");
    }
    let basic = format!("Authorization: Basic {right}\r\n");
    rig.http("POST", "/v1/list_sandboxes", &basic, b"{}")
        .refused("unauthorized");
    rig.post("list_sandboxes", Some(&right), b"{}").ok();
}

#[test]
fn what_tells_about_the_gateway_wants_a_token_too() {
    let rig = Rig::start();
    for path in ["/v1/catalog", "/openapi.json"] {
        rig.http("GET", path, "", b"").refused("unauthorized");
        let token = format!(
            "Authorization: Bearer {}\r\n",
            rig.token(Authority::Runtime)
        );
        rig.http("GET", path, &token, b"").ok();
    }
    assert_eq!(rig.http("GET", "/health", "", b"").ok()["status"], "ok");
}

#[test]
fn tokens_and_the_socket_are_for_their_user_alone() {
    let rig = Rig::start();
    let mut paths = vec![
        rig.state(),
        rig.state().join("gateway.sock"),
        rig.state().join("tokens"),
    ];
    paths
        .extend(AUTHORITIES.map(|authority| rig.state().join(format!("tokens/{authority}.token"))));
    for path in paths {
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{}: {mode:o}", path.display());
    }
}

#[test]
fn a_restart_keeps_the_tokens() {
    let mut rig = Rig::start();
    let before = rig.token(Authority::Management);
    rig.stop();
    rig.spawn();
    rig.await_socket();
    assert_eq!(rig.token(Authority::Management), before);
    rig.call("list_sandboxes", json!({})).ok();
}
