//! A sink in its own process, and the SDK configuration for it.

use anabranch::http_client::HttpClient;
use anabranch::stream::{AwsKinesis, WireFormat};
use aws_sdk_kinesis::config::retry::RetryConfig;
use aws_sdk_kinesis::config::{Credentials, Region, SharedCredentialsProvider, SharedHttpClient};
use aws_smithy_http_client::tls::{Provider, TlsContext, TrustStore, rustls_provider::CryptoMode};
use aws_types::SdkConfig;
use std::cell::RefCell;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// A running sink. Dropping it kills the process.
pub(crate) struct Endpoint {
    child: Child,
    port: u16,
    /// Certificate of a sink with TLS, in PEM format.
    certificate: Option<String>,
    /// HTTP client of the most recently created Anabranch client.
    last: RefCell<Option<HttpClient>>,
}

impl Endpoint {
    /// Starts a sink that delays the answer to a put by `delay_ms`.
    pub(crate) fn start(delay_ms: u64) -> Result<Self, String> {
        let (endpoint, _) = Self::spawn(&["sink", &delay_ms.to_string()])?;
        Ok(endpoint)
    }

    /// Starts a sink with TLS and HTTP/2.
    pub(crate) fn start_tls() -> Result<Self, String> {
        let (mut endpoint, out) = Self::spawn(&["tls-sink"])?;
        let mut certificate = String::new();
        for line in out.lines().map_while(Result::ok) {
            certificate += &line;
            certificate.push('\n');
            if line.starts_with("-----END") {
                break;
            }
        }
        endpoint.certificate = Some(certificate);
        Ok(endpoint)
    }

    fn spawn(words: &[&str]) -> Result<(Self, impl BufRead), String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        let child = command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| format!("the sink did not start: {error}"))?;
        let out = child.stdout.take().ok_or("the sink has no output")?;
        let (mut out, mut line) = (BufReader::new(out), String::new());
        out.read_line(&mut line).map_err(|error| error.to_string())?;
        let port = line.trim().parse().map_err(|_| "the sink printed no port".to_owned())?;
        Ok((Self { child, port, certificate: None, last: RefCell::default() }, out))
    }

    /// Returns the address of the sink.
    pub(crate) fn url(&self) -> String {
        let scheme = if self.certificate.is_some() { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", self.port)
    }

    fn config(&self, client: impl Into<SharedHttpClient>) -> SdkConfig {
        let credentials = Credentials::new("bench", "bench", None, None, "bench");
        SdkConfig::builder()
            .behavior_version(aws_config::BehaviorVersion::latest())
            .endpoint_url(self.url())
            .region(Region::new("eu-central-1"))
            .credentials_provider(SharedCredentialsProvider::new(credentials))
            .http_client(client.into())
            .build()
    }

    /// Returns the SDK's own client in its default form, but without retries and time-outs.
    pub(crate) fn bare(&self) -> aws_sdk_kinesis::Client {
        let client = aws_smithy_http_client::Builder::new();
        let client = match &self.certificate {
            None => client.build_http(),
            Some(pem) => {
                let trust = TrustStore::empty().with_pem_certificate(pem.as_bytes());
                let context = TlsContext::builder().with_trust_store(trust).build();
                client
                    .tls_provider(Provider::Rustls(CryptoMode::Ring))
                    .tls_context(context.expect("the sink's certificate can be read"))
                    .build_https()
            }
        };
        let config = aws_sdk_kinesis::config::Builder::from(&self.config(client));
        let config = config
            .retry_config(RetryConfig::disabled())
            .timeout_config(aws_sdk_kinesis::config::timeout::TimeoutConfig::disabled());
        aws_sdk_kinesis::Client::from_conf(config.build())
    }

    /// Returns Anabranch's client.
    pub(crate) fn ours(&self, format: WireFormat) -> AwsKinesis {
        let http = match &self.certificate {
            None => HttpClient::from_env().expect("the environment has no mistake"),
            Some(pem) => {
                HttpClient::with_trusted_pem(pem).expect("the sink's certificate can be read")
            }
        };
        let config = self.config(SharedHttpClient::new(http.clone()));
        *self.last.borrow_mut() = Some(http);
        AwsKinesis::speaking(format, &config)
    }

    /// Returns the number of connections made by the most recent Anabranch client.
    pub(crate) fn connections(&self) -> u64 {
        self.last.borrow().as_ref().map_or(0, |http| http.connections().made)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
