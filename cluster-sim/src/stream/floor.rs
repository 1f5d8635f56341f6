//! The kernel-only floor: what the same bytes cost when nothing is done but writing them.

use std::io::{ErrorKind, Read as _};
use std::net::{SocketAddr, TcpListener};

use tokio::net::{TcpSocket, TcpStream};

use crate::fault::Fault;
use crate::proc::{Event, cpu, talk};

/// About what a segment of ten-record transactions is on the wire.
const BUFFER_BYTES: usize = 52 * 1024;
/// What a sink reads at once.
const READ_BYTES: usize = 256 * 1024;

/// Room in the sockets: what the product asks for.
const SEND_BUFFER_BYTES: u32 = 512 * 1024;

/// Writes `bytes` to each sink from one thread and answers that thread's CPU time and its write calls.
///
/// The sockets do not block, and the thread sleeps only when none has room, as a sender's worker does.
///
/// # Errors
/// A sink that cannot be reached, or goes away.
pub(crate) fn write(sinks: &[String], bytes: u64) -> Result<(u64, u64), Fault> {
    let failed = |error: std::io::Error| Fault::run(format!("the kernel floor: {error}"));
    let addresses: Result<Vec<SocketAddr>, _> = sinks.iter().map(|sink| sink.parse()).collect();
    let addresses = addresses.map_err(Fault::run)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(failed)?;
    let writer = std::thread::Builder::new().name("floor".to_owned()).spawn(move || {
        runtime.block_on(async {
            let mut streams = Vec::new();
            for address in addresses {
                streams.push(connect(address).await?);
            }
            let before = cpu::this_thread_ns();
            let mut tasks = tokio::task::JoinSet::new();
            for stream in streams {
                tasks.spawn(fill(stream, bytes));
            }
            let mut writes = 0;
            while let Some(task) = tasks.join_next().await {
                writes += task.map_err(std::io::Error::other)??;
            }
            Ok((cpu::this_thread_ns() - before, writes))
        })
    });
    let writer = writer.map_err(failed)?;
    writer.join().map_err(|_| Fault::run("the floor's writer thread panicked"))?.map_err(failed)
}

async fn connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    let stream = socket.connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Answers the write calls that it took.
async fn fill(stream: TcpStream, bytes: u64) -> std::io::Result<u64> {
    let buffer = vec![0x5a_u8; BUFFER_BYTES];
    let (mut left, mut writes) = (bytes, 0);
    while left > 0 {
        let piece = usize::try_from(left).unwrap_or(usize::MAX).min(BUFFER_BYTES);
        writes += 1;
        match stream.try_write(&buffer[..piece]) {
            Ok(count) => left -= count as u64,
            Err(error) if error.kind() == ErrorKind::WouldBlock => stream.writable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(writes)
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
