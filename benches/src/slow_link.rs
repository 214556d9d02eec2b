//! Links of limited rates between the namespace hosts of a bench.

use tests::Host;

/// The share of a frame that is TCP's payload: 1448 of 1514 bytes.
pub const PAYLOAD: f64 = 1448.0 / 1514.0;
/// The bytes that a token bucket lets pass at once: one batch of segments of the kernel.
const BURST: &str = "64kb";

/// Limits the rate at which a host sends, in megabits per second. Fails with the words of `tc`.
pub fn limit(host: &Host, mbit: u32) -> Result<(), String> {
    limit_interface(host, "eth0", mbit)
}

/// Limits the rate at which a host sends over an interface, as [`limit`].
pub fn limit_interface(host: &Host, interface: &str, mbit: u32) -> Result<(), String> {
    let rate = format!("{mbit}mbit");
    let words = ["tc", "qdisc", "add", "dev", interface, "root", "tbf", "rate", &rate, "burst", BURST, "limit", "16mb"];
    let output = host.run(words);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(format!("tc on {}: {said}", host.name())) }
}
