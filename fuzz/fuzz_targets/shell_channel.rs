//! Fuzzes `shell_channel`: see tests/fuzz/parsers.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| (parsers::target("shell_channel").check)(data));
