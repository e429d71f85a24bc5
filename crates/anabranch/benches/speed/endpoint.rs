//! A sink in a process of its own, and the SDK's configuration for it.

use anabranch::stream::WireFormat;
use aws_sdk_kinesis::config::retry::RetryConfig;
use aws_sdk_kinesis::config::{Credentials, Region, SharedCredentialsProvider};
use aws_types::SdkConfig;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// A sink that ends with this value.
pub(crate) struct Endpoint {
    child: Child,
    port: u16,
}

impl Endpoint {
    /// Starts a sink that waits so long before it answers a put.
    pub(crate) fn start(delay_ms: u64) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        let command = command.args(["sink", &delay_ms.to_string()]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| format!("the sink did not start: {error}"))?;
        let mut line = String::new();
        let printed = child.stdout.take().map(BufReader::new);
        printed.map(|mut out| out.read_line(&mut line));
        let port = line.trim().parse().map_err(|_| "the sink printed no port".to_owned())?;
        Ok(Self { child, port })
    }

    /// Its address.
    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The SDK's configuration, over plain TCP.
    pub(crate) fn config(&self) -> SdkConfig {
        let credentials = Credentials::new("bench", "bench", None, None, "bench");
        SdkConfig::builder()
            .behavior_version(aws_config::BehaviorVersion::latest())
            .endpoint_url(self.url())
            .region(Region::new("eu-central-1"))
            .credentials_provider(SharedCredentialsProvider::new(credentials))
            .http_client(aws_smithy_http_client::Builder::new().build_http())
            .build()
    }

    /// The SDK's own client, as one would make it, but without retries.
    pub(crate) fn bare(&self) -> aws_sdk_kinesis::Client {
        let config = aws_sdk_kinesis::config::Builder::from(&self.config());
        let config = config
            .retry_config(RetryConfig::disabled())
            .timeout_config(aws_sdk_kinesis::config::timeout::TimeoutConfig::disabled());
        aws_sdk_kinesis::Client::from_conf(config.build())
    }

    /// Our own client.
    pub(crate) fn ours(&self, format: WireFormat) -> anabranch::stream::AwsKinesis {
        anabranch::stream::AwsKinesis::speaking(format, &self.config())
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
