//! Fuzzes `config_files`: see tests/fuzz/parsers.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| (parsers::target("config_files").check)(data));
