//! The servers that the store is tested against: the embedded one, and Amazon's DynamoDB Local.

use anabranch_local::Local;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{Credentials, Region, SharedCredentialsProvider};
use aws_types::SdkConfig;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The folder with `DynamoDBLocal.jar`; set by `cargo xtask test`.
const FOLDER: &str = "ANABRANCH_DYNAMODB_LOCAL";
/// The port of a running server that all tests share; set by `cargo xtask test`.
const PORT: &str = "ANABRANCH_DYNAMODB_LOCAL_PORT";
/// The access key whose tables the Java program of the tests reads.
pub(crate) const JAVAS_KEY: &str = "local";

/// A DynamoDB without tables. Dropping it ends it.
pub(crate) enum Server {
    Embedded(Local),
    Java(DynamoDbLocal),
}

impl Server {
    pub(crate) async fn embedded() -> Self {
        Self::Embedded(Local::start().await.expect("a local stream"))
    }

    /// Starts DynamoDB Local, or returns `None` and prints a line if it is not installed. Tables
    /// belong to an access key, so each test has its own, even on a shared server.
    pub(crate) async fn java(test: &str) -> Option<Self> {
        static USERS: AtomicU32 = AtomicU32::new(0);
        let user = USERS.fetch_add(1, Ordering::Relaxed);
        Self::java_as(test, format!("test{}n{user}", std::process::id())).await
    }

    /// Does the same, with the tables of a given access key.
    pub(crate) async fn java_as(test: &str, key: impl Into<String>) -> Option<Self> {
        if let Some(port) = std::env::var(PORT).ok().and_then(|port| port.parse().ok()) {
            return Some(Self::Java(DynamoDbLocal { process: None, port, key: key.into() }));
        }
        let Some(folder) = std::env::var_os(FOLDER) else {
            println!("skipped {test}: {FOLDER} is not set; `cargo xtask test` sets it");
            return None;
        };
        Some(Self::Java(DynamoDbLocal::start(Path::new(&folder), key.into()).await))
    }

    pub(crate) fn address(&self) -> SocketAddr {
        match self {
            Self::Embedded(local) => local.address(),
            Self::Java(java) => SocketAddr::from((Ipv4Addr::LOCALHOST, java.port)),
        }
    }

    pub(crate) fn config(&self) -> SdkConfig {
        match self {
            Self::Embedded(local) => local.sdk_config(),
            Self::Java(java) => config_as(&java.key, &format!("http://127.0.0.1:{}", java.port)),
        }
    }
}

/// Returns a configuration for a server on this machine, without an HTTP client: the store brings
/// its own.
pub(crate) fn config_for(endpoint: &str) -> SdkConfig {
    config_as("local", endpoint)
}

fn config_as(key: &str, endpoint: &str) -> SdkConfig {
    let credentials = Credentials::new(key, "local", None, None, "test");
    SdkConfig::builder()
        .endpoint_url(endpoint)
        .region(Region::new("us-east-1"))
        .credentials_provider(SharedCredentialsProvider::new(credentials))
        .build()
}

/// Returns a client of the SDK, to read raw rows.
pub(crate) fn client(config: &SdkConfig) -> Client {
    let http = aws_smithy_http_client::Builder::new().build_http();
    Client::new(&config.to_builder().http_client(http).build())
}

/// DynamoDB Local. Dropping it kills its own process by pid.
pub(crate) struct DynamoDbLocal {
    process: Option<Child>,
    port: u16,
    /// Access key whose tables are visible.
    key: String,
}

impl DynamoDbLocal {
    async fn start(folder: &Path, key: String) -> Self {
        let port = free_port();
        let jar: PathBuf = folder.join("DynamoDBLocal.jar");
        let process = Command::new("java")
            .args(["-Xmx256m", "-Djava.library.path=./DynamoDBLocal_lib", "-jar"])
            .arg(&jar)
            .args(["-inMemory", "-disableTelemetry", "-port", &port.to_string()])
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("java starts");
        let server = Self { process: Some(process), port, key };
        for _ in 0..600 {
            if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
                return server;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{} does not answer on port {port}", jar.display());
    }
}

impl Drop for DynamoDbLocal {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("it has an address").port()
}
