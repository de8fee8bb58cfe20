//! Tells a service manager how the process is (systemd's `Type=notify`): one datagram for each state, to the socket that
//! `NOTIFY_SOCKET` names. Where there is none, nobody is told.

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

const SOCKET: &str = "NOTIFY_SOCKET";

/// What there is to tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It serves.
    Ready,
    /// It is on its way down.
    Stopping,
}

impl State {
    const fn as_bytes(self) -> &'static [u8] {
        match self {
            Self::Ready => b"READY=1",
            Self::Stopping => b"STOPPING=1",
        }
    }
}

/// Tells whoever supervises this process. A supervisor that cannot be told is no reason to stop.
pub fn tell(state: State) {
    let Some(socket) = std::env::var_os(SOCKET).filter(|socket| !socket.is_empty()) else { return };
    if let Err(error) = send(&socket, state) {
        tracing::warn!(%error, "the service manager could not be told ({SOCKET})");
    }
}

fn send(socket: &OsStr, state: State) -> std::io::Result<()> {
    // A name that begins with `@` is in no file system.
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
    };
    let sender = UnixDatagram::unbound()?;
    sender.set_nonblocking(true)?;
    sender.send_to_addr(state.as_bytes(), &address).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_arrives_at_a_path_and_at_an_abstract_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let name = format!("@tidings-test-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(&name.as_bytes()[1..]).unwrap();
        for (manager, socket) in
            [(UnixDatagram::bind(&path).unwrap(), path.as_os_str()), (UnixDatagram::bind_addr(&abstract_name).unwrap(), OsStr::new(&name))]
        {
            send(socket, State::Ready).unwrap();
            send(socket, State::Stopping).unwrap();
            let mut told = [0; 64];
            for state in [State::Ready, State::Stopping] {
                let length = manager.recv(&mut told).unwrap();
                assert_eq!(&told[..length], state.as_bytes());
            }
        }
        assert!(send(OsStr::new("/nowhere/notify"), State::Ready).is_err());
    }
}
