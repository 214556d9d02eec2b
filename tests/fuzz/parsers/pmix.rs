//! The frames between an agent and its `scela-pmix`.

use nla::pmix::message::{ToAgent, ToHelper, read_frame, write_frame};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Checks the bytes as frames of each direction, and as a message of each.
pub(super) fn check(data: &[u8]) {
    super::messages::check_as::<ToHelper>(data);
    super::messages::check_as::<ToAgent>(data);
    check_frames::<ToHelper>(data);
    check_frames::<ToAgent>(data);
}

/// Frames that were read can be written and read again. Reading ends at the end of the bytes, or with an error.
fn check_frames<M: Serialize + DeserializeOwned>(data: &[u8]) {
    let mut rest = data;
    loop {
        let before = rest.len();
        match read_frame::<M>(&mut rest) {
            Ok(Some(message)) => {
                assert!(rest.len() < before, "a frame has bytes");
                let mut frame = Vec::new();
                write_frame(&mut frame, &message).expect("a vector takes all bytes");
                let again = read_frame::<M>(&mut &frame[..]).expect("a written frame can be read").expect("it is one");
                let mut twice = Vec::new();
                write_frame(&mut twice, &again).expect("a vector takes all bytes");
                assert_eq!(twice, frame);
            }
            Ok(None) => return assert!(before < 4, "{before} bytes are not the end"),
            Err(error) => return super::check_shown(&error.to_string()),
        }
    }
}
