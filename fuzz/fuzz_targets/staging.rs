//! Fuzzes `staging`: see tests/fuzz/parsers.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| (parsers::target("staging").check)(data));
