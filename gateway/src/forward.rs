//! Forwarding: callers reach what listens in a session, at `/v1/forward/{session}/{port}/…`.
//!
//! A connection is opened inside the session's network namespace, by its init, which listens to nobody
//! inside; so it reaches that session's own loopback, whatever others have at the same port. HTTP
//! requests and WebSockets go through as they are, but for the headers that are meant for the gateway:
//! the token never reaches the session. `Upgrade: tcp` gives the connection itself.

use std::net::TcpStream as StdTcpStream;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request as HttpRequest;
use axum::http::header::{self, HeaderName};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, Version};
use axum::response::Response;
use hyper::client::conn::http1;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use sandstack_api::{ErrorCode, SessionId};
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, watch};

use crate::auth::Principal;
use crate::failure::{Failure, Result};
use crate::gateway::{Gateway, Session};

/// Connections into sessions at once.
pub(crate) const MAX_FORWARDS: usize = 1024;
/// How long a listener may take to accept; one that is there does it in microseconds.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// What all addresses of forwards begin with.
pub(crate) const PREFIX: &str = "/v1/forward/";
/// The protocol of the `Upgrade` header that asks for the connection itself.
const RAW: &[u8] = b"tcp";

/// Headers that are about one connection only (RFC 9110, 7.6.1), or for the gateway.
const NOT_FORWARDED: [HeaderName; 9] = [
    header::AUTHORIZATION,
    header::CONNECTION,
    header::HOST,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
];

/// What an address asks for.
#[derive(Debug, PartialEq, Eq)]
struct Target {
    session: SessionId,
    port: u16,
    /// Path and query for the service.
    rest: String,
    /// What of the address the service does not see.
    prefix: String,
}

/// Answers a request with what a service in a session answers.
pub(crate) async fn forward(
    gateway: &Arc<Gateway>,
    principal: &Principal,
    request: HttpRequest,
) -> Result<Response> {
    let target = parse(request.uri())?;
    let session = gateway.session_for(principal, &target.session)?;
    let permit = Arc::clone(&gateway.forwards)
        .try_acquire_owned()
        .map_err(|_| {
            let message =
                format!("{MAX_FORWARDS} connections into sessions are open already; end some");
            Failure::new(ErrorCode::Busy, message)
        })?;
    let stream = gateway.connect(&session, target.port).await?;
    let ending = gateway.streams.ending();
    if wants_upgrade(request.headers()).is_some_and(|protocol| protocol == RAW) {
        return Ok(raw(request, stream, permit, ending));
    }
    relay(request, &target, stream, permit, ending).await
}

impl Gateway {
    /// A connection to a port of a session's own loopback.
    async fn connect(self: &Arc<Self>, session: &Arc<Session>, port: u16) -> Result<TcpStream> {
        let _gate = session.enter().await?;
        let mut refused = None;
        // Who listens at `localhost` may have taken either.
        for version_6 in [false, true] {
            let (holder, id) = (session.sandbox.holder()?, session.id.to_string());
            let begun = self
                .blocking(move || Ok(holder.connect_to(&id, port, version_6)?))
                .await;
            let reason = match begun {
                Ok(begun) => match tokio::time::timeout(CONNECT_DEADLINE, connected(begun)).await {
                    Ok(Ok(stream)) => return Ok(stream),
                    Ok(Err(error)) => error.to_string(),
                    Err(_) => format!("no answer within {CONNECT_DEADLINE:?}"),
                },
                // Without that version of IP, say.
                Err(error) if error.code() == ErrorCode::Unavailable => error.to_string(),
                Err(error) => return Err(error),
            };
            refused.get_or_insert(reason);
        }
        let reason = refused.unwrap_or_default();
        Err(Failure::new(
            ErrorCode::Unavailable,
            format!(
                "nothing answers at port {port} in workspace session {} ({reason}); start a service there that \
                 listens on localhost",
                session.id
            ),
        ))
    }
}

/// Waits until a connection that was begun is there.
async fn connected(begun: OwnedFd) -> std::io::Result<TcpStream> {
    let stream = TcpStream::from_std(StdTcpStream::from(begun))?;
    stream.writable().await?;
    match stream.take_error()? {
        Some(error) => Err(error),
        None => Ok(stream),
    }
}

/// Gives the connection itself to the caller.
fn raw(
    mut request: HttpRequest,
    mut stream: TcpStream,
    permit: OwnedSemaphorePermit,
    ending: watch::Receiver<bool>,
) -> Response {
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        match upgrade.await {
            Ok(caller) => pump(&mut TokioIo::new(caller), &mut stream, ending).await,
            Err(error) => tracing::debug!(%error, "a caller did not take its connection"),
        }
        drop(permit);
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("tcp"));
    response
}

/// Hands a request on, and its response back.
async fn relay(
    mut request: HttpRequest,
    target: &Target,
    stream: TcpStream,
    permit: OwnedSemaphorePermit,
    mut ending: watch::Receiver<bool>,
) -> Result<Response> {
    let failed = |error: hyper::Error| {
        let message = format!(
            "what listens at port {} in workspace session {} does not speak HTTP: {error}",
            target.port, target.session
        );
        Failure::new(ErrorCode::Unavailable, message).caused_by(error)
    };
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(failed)?;
    let until = ending.clone();
    tokio::spawn(async move {
        // It lives as long as its response, or as the connection that comes of it.
        tokio::select! {
            ended = connection.with_upgrades() => if let Err(error) = ended {
                tracing::debug!(%error, "a connection into a session broke");
            },
            // The sender went with the gateway, if it failed.
            _ = ending.wait_for(|ending| *ending) => {}
        }
        drop(permit);
    });
    let upgrade = wants_upgrade(request.headers()).map(<[u8]>::to_vec);
    let caller = upgrade.as_ref().map(|_| hyper::upgrade::on(&mut request));
    prepare(&mut request, target, upgrade.as_deref())?;
    let mut response = sender.send_request(request).await.map_err(failed)?;
    let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    let protocol = response.headers().get(header::UPGRADE).cloned();
    strip(response.headers_mut());
    match (switched, caller) {
        (true, Some(caller)) => {
            let service = hyper::upgrade::on(&mut response);
            tokio::spawn(async move { join(caller, service, until).await });
            let headers = response.headers_mut();
            headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
            if let Some(protocol) = protocol {
                headers.insert(header::UPGRADE, protocol);
            }
        }
        (true, None) => {
            return Err(Failure::new(
                ErrorCode::Unavailable,
                "the service changed the protocol, which nobody had asked for",
            ));
        }
        (false, _) => {}
    }
    Ok(response.map(Body::new))
}

/// Lets two connections that have left HTTP talk.
async fn join(caller: OnUpgrade, service: OnUpgrade, ending: watch::Receiver<bool>) {
    match tokio::try_join!(caller, service) {
        Ok((caller, service)) => {
            pump(
                &mut TokioIo::new(caller),
                &mut TokioIo::new(service),
                ending,
            )
            .await;
        }
        Err(error) => tracing::debug!(%error, "a connection into a session was not taken up"),
    }
}

/// Copies both ways until both have ended, or the gateway stops.
async fn pump<A, B>(caller: &mut A, service: &mut B, mut ending: watch::Receiver<bool>)
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    tokio::select! {
        copied = copy_bidirectional(caller, service) => if let Err(error) = copied {
            tracing::debug!(%error, "a connection into a session broke");
        },
        _ = ending.wait_for(|ending| *ending) => {}
    }
}

/// What a request asks to upgrade to, if it does.
fn wants_upgrade(headers: &HeaderMap) -> Option<&[u8]> {
    let named = headers.get_all(header::CONNECTION).iter().any(|value| {
        let mut words = value.as_bytes().split(|byte| *byte == b',');
        words.any(|word| word.trim_ascii().eq_ignore_ascii_case(b"upgrade"))
    });
    let protocol = headers.get(header::UPGRADE).filter(|_| named)?;
    Some(protocol.as_bytes())
}

/// Makes a request one to the service.
fn prepare(request: &mut HttpRequest, target: &Target, upgrade: Option<&[u8]>) -> Result<()> {
    let host = request.headers().get(header::HOST).cloned();
    *request.uri_mut() = target
        .rest
        .parse()
        .map_err(|error| Failure::invalid(format!("the address is not valid: {error}")))?;
    *request.version_mut() = Version::HTTP_11;
    let headers = request.headers_mut();
    strip(headers);
    let value = |text: &str| {
        HeaderValue::from_str(text)
            .map_err(|error| Failure::invalid(format!("the address is not valid: {error}")))
    };
    headers.insert(header::HOST, value(&format!("localhost:{}", target.port))?);
    headers.insert(
        HeaderName::from_static("x-forwarded-prefix"),
        value(&target.prefix)?,
    );
    if let Some(host) = host {
        headers.insert(HeaderName::from_static("x-forwarded-host"), host);
    }
    if let Some(protocol) = upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        let protocol = HeaderValue::from_bytes(protocol)
            .map_err(|error| Failure::invalid(format!("the Upgrade header: {error}")))?;
        headers.insert(header::UPGRADE, protocol);
    }
    Ok(())
}

/// Takes away what is not for the other side, and what `Connection` names.
fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .filter_map(|word| HeaderName::from_bytes(word.trim_ascii()).ok())
        .collect();
    for name in NOT_FORWARDED.iter().chain(&named) {
        headers.remove(name);
    }
}

fn parse(address: &Uri) -> Result<Target> {
    let malformed = || {
        Failure::invalid(format!(
            "the address is not of the form {PREFIX}{{session}}/{{port}}/…, with a port of 1 to 65535"
        ))
    };
    let below = address.path().strip_prefix(PREFIX).ok_or_else(malformed)?;
    let mut parts = below.splitn(3, '/');
    let session = parts.next().unwrap_or_default();
    let port = parts.next().unwrap_or_default();
    let path = parts.next().unwrap_or_default();
    let query = address.query().map(|query| format!("?{query}"));
    let number = port.parse().ok().filter(|port| *port != 0);
    Ok(Target {
        session: SessionId::new(session).map_err(|_| malformed())?,
        port: number.ok_or_else(malformed)?,
        rest: format!("/{path}{}", query.unwrap_or_default()),
        prefix: format!("{PREFIX}{session}/{port}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_apart() {
        let of = |text: &str| parse(&text.parse().unwrap());
        let target = of("/v1/forward/ws-1/8080/a%2Fb/c?d=e").unwrap();
        assert_eq!(
            (target.session.as_ref(), target.port, &*target.rest),
            ("ws-1", 8080, "/a%2Fb/c?d=e")
        );
        assert_eq!(target.prefix, "/v1/forward/ws-1/8080");
        for root in ["/v1/forward/ws-1/80", "/v1/forward/ws-1/80/"] {
            assert_eq!(of(root).unwrap().rest, "/");
        }
        for bad in [
            "/v1/forward/ws-1",
            "/v1/forward/ws-1/0/",
            "/v1/forward/ws-1/65536/",
            "/v1/forward//80/",
        ] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_for_the_gateway_stays_there() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("authorization", "Bearer x"),
            ("connection", "close, X-Mine"),
            ("x-mine", "1"),
            ("accept", "*/*"),
        ] {
            headers.insert(
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            );
        }
        strip(&mut headers);
        assert_eq!(headers.keys().collect::<Vec<_>>(), ["accept"]);
    }
}
