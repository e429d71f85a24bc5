//! The sink over TLS, with HTTP/2 or HTTP/1.1 by ALPN, as in AWS.

use crate::replies::write_reply;
use crate::sink::Request;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::service::service_fn;
use hyper::{Request as HttpRequest, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use std::error::Error;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

type Failure = Box<dyn Error + Send + Sync>;

/// Serves until it is killed. Prints its port and its certificate first.
pub(crate) fn run() -> Result<(), String> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.block_on(serve()).map_err(|error| error.to_string())
}

async fn serve() -> Result<(), Failure> {
    let own = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])?;
    let key = PrivateKeyDer::try_from(own.signing_key.serialize_der())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], key)?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    // Printed in one write, because the reader stops after the last line.
    print!("{}\n{}", listener.local_addr()?.port(), own.cert.pem());
    let mut connections = JoinSet::new();
    loop {
        let (socket, _) = listener.accept().await?;
        let acceptor = acceptor.clone();
        // An error only ends this connection: the client has closed it.
        connections.spawn(async move { drop(connection(socket, acceptor).await) });
    }
}

async fn connection(socket: TcpStream, acceptor: TlsAcceptor) -> Result<(), Failure> {
    socket.set_nodelay(true)?;
    let tls = acceptor.accept(socket).await?;
    let server = auto::Builder::new(TokioExecutor::new());
    server.serve_connection(TokioIo::new(tls), service_fn(answer)).await
}

async fn answer(request: HttpRequest<Incoming>) -> Result<Response<Full<Bytes>>, Failure> {
    let header = |name: &str| {
        let value = request.headers().get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default().to_owned()
    };
    let (target, kind) = (header("x-amz-target"), header("content-type"));
    let request = Request {
        operation: target.rsplit('.').next().unwrap_or_default().to_owned(),
        cbor: kind.contains("cbor"),
        body: request.into_body().collect().await?.to_bytes().into(),
    };
    let mut reply = Vec::new();
    let kind = if write_reply(&request, &mut reply) { "cbor" } else { "json" };
    let mut response = Response::new(Full::new(Bytes::from(reply)));
    response.headers_mut().insert(CONTENT_TYPE, format!("application/x-amz-{kind}-1.1").parse()?);
    Ok(response)
}
