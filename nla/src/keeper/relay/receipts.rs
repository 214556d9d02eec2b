//! Receipts of an end that lies about what it has taken.

use tokio::task::LocalSet;

use super::*;
use crate::sys;
use crate::tasks::Panics;

#[test]
fn receipts_for_bytes_that_were_never_sent_do_not_widen_the_window() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let (outgoing, mut parcels) = mpsc::channel(16);
        let relay = Relay::new(outgoing, Panics::new("test").tasks());
        let (from, to) = sys::pipe().unwrap();
        relay.open(1, Ends { sources: vec![(StreamName::Output, from)], ..Ends::default() }).unwrap();
        let agent = Sender::from_owned_fd(to).unwrap();
        for bytes in [1, WINDOW_BYTES as u32, u32::MAX] {
            let _ = relay.on_parcel(Parcel { channel: 1, stream: StreamName::Output, flow: Flow::Taken(bytes) });
        }
        let mut sent = 0;
        loop {
            let _ = agent.try_write(&[1; PIECE_BYTES_MAX]);
            match parcels.try_recv() {
                Ok(Parcel { flow: Flow::Data(bytes), .. }) => sent += bytes.len(),
                // The relay may end the channel instead.
                _ if !relay.has(1) || relay.is_stalled(1) => break,
                _ => tokio::task::yield_now().await,
            }
            assert!(sent <= WINDOW_BYTES, "{sent} bytes are on the way");
        }
    });
}
