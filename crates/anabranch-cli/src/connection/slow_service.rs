//! What a person is told while nothing has answered yet: whom the command waits for, and with what.
//!
//! Once something has answered, silence is told by the events of whoever waits.

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

/// For how long nobody is told.
const SILENCE_MS: u64 = 4_000;

/// The same configuration, whose calls tell a person when nothing answers.
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

/// Does something before the first call, and tells a person when it takes long.
pub(crate) async fn notify_if_slow<T>(what: &str, work: impl Future<Output = T>) -> T {
    let (mut work, clock) = (pin!(work), Clock::machine());
    tokio::select! {
        biased;
        done = &mut work => return done,
        () = clock.sleep(SILENCE_MS) => print_note!("waiting for {what}"),
    }
    work.await
}

/// Clients that tell.
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

/// Calls that tell.
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

/// The call of a request, as a person knows it.
fn described(request: &HttpRequest) -> String {
    let target = request.headers().get("x-amz-target").unwrap_or_default();
    let operation = target.rsplit('.').next().filter(|operation| !operation.is_empty());
    let place = request.uri().trim_end_matches('/');
    format!("{place} to answer {}", operation.unwrap_or("a call"))
}

/// What is known of a service that has not answered.
#[derive(Debug, Default)]
struct SlowServiceWatch {
    /// When the first call was made.
    since_ms: OnceLock<u64>,
    /// What was told.
    told: Mutex<BTreeSet<String>>,
    /// Whether something has answered.
    over: AtomicBool,
}

impl SlowServiceWatch {
    /// Waits until the silence has lasted too long.
    async fn until_late(&self) {
        let clock = Clock::machine();
        let since_ms = *self.since_ms.get_or_init(|| clock.now_ms());
        clock.sleep_until(since_ms.saturating_add(SILENCE_MS)).await;
    }

    /// Tells what is waited for, once.
    fn notify(&self, what: String) {
        // Each change is one insertion, so a panic leaves no half of one.
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
