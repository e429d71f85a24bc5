//! Configuration of the AWS SDK for Rust.

use aws_credential_types::Credentials;
use aws_credential_types::provider::SharedCredentialsProvider;
use aws_smithy_async::rt::sleep::{SharedAsyncSleep, TokioSleep};
use aws_smithy_http_client::Builder;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::tls::{Provider, TlsContext, TrustStore};

/// Returns a configuration for an endpoint. With a certificate to trust, it uses TLS.
pub(crate) fn config(endpoint: String, region: &str, ca_pem: Option<&str>) -> aws_types::SdkConfig {
    let http_client = match ca_pem {
        None => Builder::new().build_http(),
        Some(pem) => {
            let trusted = TrustStore::empty().with_pem_certificate(pem);
            let context = TlsContext::builder().with_trust_store(trusted).build();
            Builder::new()
                .tls_provider(Provider::Rustls(CryptoMode::Ring))
                .tls_context(context.expect("a context needs nothing but its trust store"))
                .build_https()
        }
    };
    let credentials = Credentials::new("local", "local", None, None, "anabranch-local");
    aws_types::SdkConfig::builder()
        .endpoint_url(endpoint)
        .region(aws_types::region::Region::new(region.to_owned()))
        .credentials_provider(SharedCredentialsProvider::new(credentials))
        .http_client(http_client)
        .sleep_impl(SharedAsyncSleep::new(TokioSleep::new()))
        .build()
}
