//! The servers that the store is held against: one that is embedded, one that Amazon wrote.

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
/// The port of one that runs already and that all tests share; set by `cargo xtask test`.
const PORT: &str = "ANABRANCH_DYNAMODB_LOCAL_PORT";
/// Whose tables the Java program of the tests looks at.
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

    /// DynamoDB Local, or `None` where it is not installed; then the test says that it is skipped.
    /// Tables belong to an access key, so a test has its own, also on a server that others use.
    pub(crate) async fn java(test: &str) -> Option<Self> {
        static USERS: AtomicU32 = AtomicU32::new(0);
        let user = USERS.fetch_add(1, Ordering::Relaxed);
        Self::java_as(test, format!("test{}n{user}", std::process::id())).await
    }

    /// The same, with the tables of a given access key.
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

/// A configuration for a server on this machine, without an HTTP client: the store brings its own.
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

/// A client of the SDK, to look at rows as they are.
pub(crate) fn client(config: &SdkConfig) -> Client {
    let http = aws_smithy_http_client::Builder::new().build_http();
    Client::new(&config.to_builder().http_client(http).build())
}

/// DynamoDB Local. A process of one's own is stopped by its pid when this is dropped.
pub(crate) struct DynamoDbLocal {
    process: Option<Child>,
    port: u16,
    /// Whose tables are seen.
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
