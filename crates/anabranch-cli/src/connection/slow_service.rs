//! Notices for a service that does not answer: the service and the call.
//!
//! After the first answer, silence is reported by the events of the waiting component.

use crate::output::print_note;
use anabranch::clock::Clock;
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpClient,
    SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_types::SdkConfig;
use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Time before the first notice.
const SILENCE_MS: u64 = 4_000;

/// Returns a configuration whose HTTP calls print a notice while no answer arrives.
pub(super) fn with_notice(config: SdkConfig) -> SdkConfig {
    match config.http_client() {
        None => config,
        Some(client) => {
            let vigil = Arc::new(SlowServiceWatch::default());
            let told = SharedHttpClient::new(NotifyingHttpClient { client, vigil });
            config.into_builder().http_client(told).build()
        }
    }
}

/// Runs the work before the first call, and prints a notice if it is slow.
pub(crate) async fn notify_if_slow<T>(what: &str, work: impl Future<Output = T>) -> T {
    let (mut work, clock) = (pin!(work), Clock::machine());
    tokio::select! {
        biased;
        done = &mut work => return done,
        () = clock.sleep(SILENCE_MS) => print_note!("waiting for {what}"),
    }
    work.await
}

/// HTTP client that creates notifying connectors.
#[derive(Debug)]
struct NotifyingHttpClient {
    client: SharedHttpClient,
    vigil: Arc<SlowServiceWatch>,
}

impl HttpClient for NotifyingHttpClient {
    fn http_connector(
        &self,
        settings: &HttpConnectorSettings,
        components: &RuntimeComponents,
    ) -> SharedHttpConnector {
        let connector = self.client.http_connector(settings, components);
        if self.vigil.is_over() {
            return connector;
        }
        SharedHttpConnector::new(NotifyingConnector { connector, vigil: Arc::clone(&self.vigil) })
    }
}

/// HTTP connector that prints a notice for slow calls.
#[derive(Debug)]
struct NotifyingConnector {
    connector: SharedHttpConnector,
    vigil: Arc<SlowServiceWatch>,
}

impl HttpConnector for NotifyingConnector {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let (vigil, what) = (Arc::clone(&self.vigil), described(&request));
        let call = self.connector.call(request);
        HttpConnectorFuture::new(async move {
            let mut call = pin!(call);
            let soon = tokio::select! {
                biased;
                reply = &mut call => Some(reply),
                () = vigil.until_late() => None,
            };
            let reply = if let Some(reply) = soon {
                reply
            } else {
                vigil.notify(what);
                call.await
            };
            if reply.is_ok() {
                vigil.end();
            }
            reply
        })
    }
}

/// Describes a request for the user.
fn described(request: &HttpRequest) -> String {
    let target = request.headers().get("x-amz-target").unwrap_or_default();
    let operation = target.rsplit('.').next().filter(|operation| !operation.is_empty());
    let place = request.uri().trim_end_matches('/');
    format!("{place} to answer {}", operation.unwrap_or("a call"))
}

/// State of a service that has not answered.
#[derive(Debug, Default)]
struct SlowServiceWatch {
    /// Time of the first call.
    since_ms: OnceLock<u64>,
    /// Notices already printed.
    told: Mutex<BTreeSet<String>>,
    /// True once the service has answered.
    over: AtomicBool,
}

impl SlowServiceWatch {
    /// Waits until the silence has lasted too long.
    async fn until_late(&self) {
        let clock = Clock::machine();
        let since_ms = *self.since_ms.get_or_init(|| clock.now_ms());
        clock.sleep_until(since_ms.saturating_add(SILENCE_MS)).await;
    }

    /// Prints a notice, unless it was already printed.
    fn notify(&self, what: String) {
        // Each change is one insertion, so a panic leaves no partial change.
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_over() && !told.contains(&what) {
            print_note!("waiting for {what}");
            told.insert(what);
        }
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }
}
