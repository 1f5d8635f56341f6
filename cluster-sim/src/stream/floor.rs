//! The kernel-only floor: what the same bytes cost when nothing is done but writing them.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use crate::fault::Fault;
use crate::proc::{Event, cpu, talk};

/// About what a segment of ten-record transactions is on the wire.
const BUFFER_BYTES: usize = 52 * 1024;
/// What a sink reads at once.
const READ_BYTES: usize = 256 * 1024;

/// Writes `bytes` to each sink from one thread and answers that thread's CPU time and its write calls.
///
/// The sockets block: waiting costs the writer no CPU, so the figure holds nothing but the kernel's work.
///
/// # Errors
/// A sink that cannot be reached, or goes away.
pub(crate) fn write(sinks: &[String], bytes: u64) -> Result<(u64, u64), Fault> {
    let failed = |error: std::io::Error| Fault::run(format!("the kernel floor: {error}"));
    let mut streams = Vec::new();
    for sink in sinks {
        let stream = TcpStream::connect(sink).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        streams.push(stream);
    }
    let writer = std::thread::Builder::new().name("floor".to_owned()).spawn(move || {
        let buffer = vec![0x5a_u8; BUFFER_BYTES];
        let before = cpu::this_thread_ns();
        let (mut left, mut writes) = (bytes, 0);
        while left > 0 {
            let piece = usize::try_from(left).unwrap_or(usize::MAX).min(BUFFER_BYTES);
            for stream in &mut streams {
                let mut rest = &buffer[..piece];
                while !rest.is_empty() {
                    rest = &rest[stream.write(rest)?..];
                    writes += 1;
                }
            }
            left -= piece as u64;
        }
        Ok((cpu::this_thread_ns() - before, writes))
    });
    let writer = writer.map_err(failed)?;
    writer.join().map_err(|_| Fault::run("the floor's writer thread panicked"))?.map_err(failed)
}

/// The process at the other end: accepts one connection, reads it to its end and discards.
///
/// # Errors
/// When it cannot listen.
pub(crate) fn sink() -> Result<(), Fault> {
    talk::run(|| {
        let failed = |error: std::io::Error| Fault::run(format!("the sink: {error}"));
        let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?.to_string();
        talk::say(&Event::Ready { head: 0, log_bytes: 0, offered: 0, accepted: 0, refused: 0, address });
        std::thread::spawn(move || {
            let Ok((mut stream, _)) = listener.accept() else { return };
            let mut buffer = vec![0; READ_BYTES];
            loop {
                match stream.read(&mut buffer) {
                    Ok(0) => return,
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(_) => return,
                }
            }
        });
        while talk::hear()?.is_some() {}
        Ok(())
    })
}
