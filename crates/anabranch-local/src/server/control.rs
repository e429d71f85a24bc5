//! The control endpoint under `/_anabranch/`: state, faults, clock, resharding, iterators.
//!
//! Documented in `docs/local.md`. Bodies are JSON; a refusal is `{"error": "what is wrong"}`.

use http::{Method, Response};
use serde::Deserialize;
use serde_json::{Value, json};

use super::body::ResponseBody;
use super::reply;
use super::route::Service;
use crate::engine::Engine;
use crate::error::ApiError;
use crate::fault::{FaultEffect, FaultRule};
use crate::op::Operation;
use crate::stream::Stream;

/// Answers a request to the control endpoint.
pub(super) fn answer(
    service: &Service,
    method: &Method,
    path: &str,
    body: &[u8],
) -> Response<ResponseBody> {
    let (status, answer) = match act(service, method, path, body) {
        Ok(answer) => (200, answer),
        Err(ControlRefusal { status, error }) => (status, json!({"error": error})),
    };
    reply::whole(status, "application/json", format!("{answer}\n"))
}

/// A refused request: its HTTP status and the reason.
struct ControlRefusal {
    status: u16,
    error: String,
}

impl From<ApiError> for ControlRefusal {
    fn from(error: ApiError) -> Self {
        Self { status: error.kind.http_status(), error: error.to_string() }
    }
}

impl From<serde_json::Error> for ControlRefusal {
    fn from(error: serde_json::Error) -> Self {
        Self { status: 400, error: error.to_string() }
    }
}

fn refuse(status: u16, error: impl Into<String>) -> ControlRefusal {
    ControlRefusal { status, error: error.into() }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AdvanceRequest {
    advance_ms: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReshardRequest {
    stream: String,
    split: Option<String>,
    merge: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct ExpireRequest {
    stream: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitsRequest {
    enforce: bool,
}

fn act(
    service: &Service,
    method: &Method,
    path: &str,
    body: &[u8],
) -> Result<Value, ControlRefusal> {
    let engine = &service.engine;
    let faults = engine.faults();
    match (method.as_str(), path) {
        ("GET", "state") => Ok(state(service)),
        ("GET", "metrics") => Ok(json!({"data": service.metrics.newest()})),
        ("GET", "faults") => Ok(json!({"faults": faults.list()})),
        ("POST", "faults") => {
            let rule: FaultRule = serde_json::from_slice(body)?;
            if !(0.0..=1.0).contains(&rule.probability) {
                return Err(refuse(400, "probability must be from 0 to 1"));
            }
            let reshards = matches!(rule.effect, FaultEffect::Split | FaultEffect::Merge);
            let struck = [Operation::PutRecord, Operation::PutRecords, Operation::GetRecords];
            if reshards && rule.operation.is_some_and(|operation| !struck.contains(&operation)) {
                let text = "Split and Merge apply only to PutRecord, PutRecords and GetRecords";
                return Err(refuse(400, text));
            }
            Ok(json!({"id": faults.add(rule)}))
        }
        ("DELETE", "faults") => {
            faults.clear();
            Ok(json!({}))
        }
        ("POST", "limits") => {
            let LimitsRequest { enforce } = serde_json::from_slice(body)?;
            engine.enforce_limits(enforce);
            Ok(json!({}))
        }
        ("POST", "clock") => advance(engine, body),
        ("POST", "reshard") => reshard(engine, body),
        ("POST", "expire-iterators") => {
            let body = if body.is_empty() { b"{}" } else { body };
            let which: ExpireRequest = serde_json::from_slice(body)?;
            engine.expire_iterators(which.stream.as_deref())?;
            Ok(json!({}))
        }
        ("DELETE", _) if path.starts_with("faults/") => {
            let id = path["faults/".len()..].parse().ok();
            if id.is_some_and(|id| faults.remove(id)) {
                Ok(json!({}))
            } else {
                Err(refuse(404, format!("fault rule {path} does not exist")))
            }
        }
        _ => Err(refuse(404, format!("{method} /_anabranch/{path} is not supported"))),
    }
}

fn advance(engine: &Engine, body: &[u8]) -> Result<Value, ControlRefusal> {
    let AdvanceRequest { advance_ms } = serde_json::from_slice(body)?;
    if !engine.clock().advance(advance_ms) {
        return Err(refuse(409, "the engine uses the system clock, which cannot be changed"));
    }
    Ok(json!({"now_ms": engine.clock().now_ms()}))
}

fn reshard(engine: &Engine, body: &[u8]) -> Result<Value, ControlRefusal> {
    let request: ReshardRequest = serde_json::from_slice(body)?;
    match (request.split.as_deref(), request.merge.as_deref()) {
        (Some(shard), None) => engine.split_now(&request.stream, Some(shard))?,
        (None, Some(shard)) => engine.merge_now(&request.stream, Some(shard))?,
        _ => return Err(refuse(400, "set either \"split\" or \"merge\", to one shard")),
    }
    Ok(json!({}))
}

fn state(service: &Service) -> Value {
    let engine = &service.engine;
    let streams = engine.present_streams();
    let streams: Vec<_> =
        streams.iter().map(|(stream, status)| describe(stream, status.name())).collect();
    let (calls, data) = service.metrics.counts();
    let clock = if engine.clock().is_manual() { "manual" } else { "system" };
    json!({
        "clock": clock,
        "now_ms": engine.clock().now_ms(),
        "streams": streams,
        "memory_bytes": engine.memory_bytes(),
        "max_memory_bytes": engine.options().max_memory_bytes,
        "limits_enforced": engine.limits_enforced(),
        "faults": engine.faults().list(),
        "metrics": {"calls": calls, "data": data},
        "connections": service.connections.now(),
        "tls_connections": service.tls_connections.as_ref().map(|counter| counter.now()),
    })
}

fn describe(stream: &Stream, status: &str) -> Value {
    let topology = stream.read();
    let shards: Vec<_> = topology
        .shards
        .iter()
        .map(|state| {
            let inside = state.shard.lock();
            json!({
                "id": state.shard.id.as_str(),
                "open": state.is_open(),
                "parents": state.shard.parents,
                "records": inside.log.len(),
                "memory_bytes": inside.log.allocated_bytes(),
            })
        })
        .collect();
    json!({"name": stream.name, "arn": stream.arn, "status": status, "shards": shards})
}
