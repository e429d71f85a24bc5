//! Server that answers requests with canned replies. Clients are measured against it because every
//! emulator is slower than a client.

use crate::replies::write_reply;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// The parts of a request that the sink reads.
#[derive(Default)]
pub(crate) struct Request {
    /// Operation name.
    pub(crate) operation: String,
    /// True if the request is in CBOR.
    pub(crate) cbor: bool,
    pub(crate) body: Vec<u8>,
}

/// Serves until it is killed. Prints its port first.
pub(crate) fn run(delay_ms: u64) -> Result<(), String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    println!("{}", listener.local_addr().map_err(|error| error.to_string())?.port());
    let delay = Duration::from_millis(delay_ms);
    std::thread::scope(|threads| {
        for socket in listener.incoming().flatten() {
            threads.spawn(move || {
                // An error only ends this connection: the client has closed it.
                let _ = serve(socket, delay);
            });
        }
    });
    Ok(())
}

fn serve(socket: TcpStream, delay: Duration) -> std::io::Result<()> {
    socket.set_nodelay(true)?;
    let mut writer = socket.try_clone()?;
    let mut reader = BufReader::with_capacity(256 * 1024, socket);
    let mut request = Request::default();
    let (mut line, mut reply) = (String::new(), Vec::new());
    while read(&mut reader, &mut line, &mut request)? {
        reply.clear();
        let cbor = write_reply(&request, &mut reply);
        if request.operation.starts_with("Put") {
            std::thread::sleep(delay);
        }
        let (kind, length) = (if cbor { "cbor" } else { "json" }, reply.len());
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/x-amz-{kind}-1.1\r\n\
             content-length: {length}\r\n\r\n"
        );
        writer.write_all(head.as_bytes())?;
        writer.write_all(&reply)?;
    }
    Ok(())
}

/// Reads one request. Returns false at the end of the connection.
fn read(
    reader: &mut BufReader<TcpStream>,
    line: &mut String,
    request: &mut Request,
) -> std::io::Result<bool> {
    let mut length = 0;
    request.cbor = false;
    loop {
        line.clear();
        if reader.read_line(line)? == 0 {
            return Ok(false);
        }
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        let Some((name, value)) = line.split_once(": ") else { continue };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.parse().unwrap_or(0);
        } else if name.eq_ignore_ascii_case("content-type") {
            request.cbor = value.contains("cbor");
        } else if name.eq_ignore_ascii_case("x-amz-target") {
            value.rsplit('.').next().unwrap_or_default().clone_into(&mut request.operation);
        }
    }
    request.body.resize(length, 0);
    reader.read_exact(&mut request.body)?;
    Ok(true)
}
