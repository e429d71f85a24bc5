//! The servers that the store is held against: one that is embedded, one that Amazon wrote.

use anabranch_local::Local;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{Credentials, Region, SharedCredentialsProvider};
use aws_types::SdkConfig;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The folder with `DynamoDBLocal.jar`; set by `cargo xtask test`.
const FOLDER: &str = "ANABRANCH_DYNAMODB_LOCAL";

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
    pub(crate) async fn java(test: &str) -> Option<Self> {
        let Some(folder) = std::env::var_os(FOLDER) else {
            println!("skipped {test}: {FOLDER} is not set; `cargo xtask test` sets it");
            return None;
        };
        Some(Self::Java(DynamoDbLocal::start(Path::new(&folder)).await))
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
            Self::Java(java) => config_for(&format!("http://127.0.0.1:{}", java.port)),
        }
    }
}

/// A configuration for a server on this machine, without an HTTP client: the store brings its own.
pub(crate) fn config_for(endpoint: &str) -> SdkConfig {
    let credentials = Credentials::new("local", "local", None, None, "test");
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

/// DynamoDB Local as a process of its own, stopped by its pid when this is dropped.
pub(crate) struct DynamoDbLocal {
    process: Child,
    port: u16,
}

impl DynamoDbLocal {
    async fn start(folder: &Path) -> Self {
        let port = free_port();
        let jar: PathBuf = folder.join("DynamoDBLocal.jar");
        let process = Command::new("java")
            .args(["-Xmx256m", "-Djava.library.path=./DynamoDBLocal_lib", "-jar"])
            .arg(&jar)
            .args(["-inMemory", "-sharedDb", "-disableTelemetry", "-port", &port.to_string()])
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("java starts");
        let server = Self { process, port };
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
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("it has an address").port()
}
