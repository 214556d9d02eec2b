//! Ranks that use the bulletin board as MPI libraries do and check each value that they get.

use crate::Finding;
use crate::connection::client;

fn value(rank: u32, round: u64) -> String {
    format!("value of {rank} in round {round} = {}", "ab\\c ".repeat((rank as usize + round as usize) % 7))
}

fn check(found: Option<Vec<u8>>, expected: &str, what: &str) -> Result<(), Finding> {
    match found {
        Some(found) if found == expected.as_bytes() => Ok(()),
        Some(found) => Err(format!("{what} is {:?}, not {expected:?}", String::from_utf8_lossy(&found)).into()),
        None => Err(format!("{what} is absent").into()),
    }
}

/// Runs the pattern 1:2: each rank puts one entry and gets those of its two neighbours.
pub(crate) fn neighbours(rounds: u64) -> Result<(), Finding> {
    exchange(rounds, |rank, size| vec![(rank + 1) % size, (rank + size - 1) % size])
}

/// Runs the pattern 1:p: each rank puts one entry and gets those of all ranks.
pub(crate) fn everybody(rounds: u64) -> Result<(), Finding> {
    exchange(rounds, |_, size| (0..size).collect())
}

fn exchange(rounds: u64, partners: impl Fn(u32, u32) -> Vec<u32>) -> Result<(), Finding> {
    let (mut pmi, rank, size) = client()?;
    for round in 0..rounds {
        // Each round puts one new key and overwrites another.
        let card = |rank| format!("card-{rank}-{round}");
        let again = |rank| format!("again[{rank}]");
        pmi.put(card(rank).as_bytes(), value(rank, round).as_bytes())?;
        pmi.put(again(rank).as_bytes(), round.to_string().as_bytes())?;
        pmi.barrier()?;
        for partner in partners(rank, size) {
            check(pmi.get(card(partner).as_bytes())?, &value(partner, round), &card(partner))?;
            check(pmi.get(again(partner).as_bytes())?, &round.to_string(), &again(partner))?;
        }
        pmi.barrier()?;
    }
    Ok(pmi.finalize()?)
}

/// Runs the exchange that the simulator models, with the same keys and lengths of values: put, fence, get the cards of
/// both neighbours or of all ranks, fence.
pub(crate) fn cards(of_all: bool) -> Result<(), Finding> {
    let (mut pmi, rank, size) = client()?;
    let key = |rank: u32| format!("card-{rank}");
    let value = |rank: u32| {
        let length = ((u64::from(rank) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % 1000 + 1;
        let text = format!("of {rank} ").repeat(length as usize);
        text[..length as usize].to_owned()
    };
    pmi.put(key(rank).as_bytes(), value(rank).as_bytes())?;
    pmi.barrier()?;
    let partners = if of_all { (1..=size).collect() } else { vec![size - 1, 1] };
    for partner in partners.into_iter().map(|step| (rank + step) % size) {
        check(pmi.get(key(partner).as_bytes())?, &value(partner), &key(partner))?;
    }
    pmi.barrier()?;
    Ok(pmi.finalize()?)
}

/// Runs fences. Before every tenth fence one rank puts an entry, which all ranks get after it.
pub(crate) fn fences(count: u64) -> Result<(), Finding> {
    let (mut pmi, rank, size) = client()?;
    for number in 0..count {
        let putter = (number % u64::from(size)) as u32;
        let key = format!("fence-{number}");
        if number % 10 == 0 && rank == putter {
            pmi.put(key.as_bytes(), b"x")?;
        }
        pmi.barrier()?;
        if number % 10 == 0 {
            check(pmi.get(key.as_bytes())?, "x", &key)?;
        }
    }
    Ok(pmi.finalize()?)
}

/// Puts and gets values of each length and with each byte that a line can hold.
pub(crate) fn values() -> Result<(), Finding> {
    let (mut pmi, rank, size) = client()?;
    let mut values: Vec<(String, String)> = [
        ("blanks", "a b  c   d"),
        ("leading", "  two blanks in front"),
        ("trailing", "two blanks behind  "),
        ("padded", "MAAxNAAwMDA0AG9iMQA -"),
        ("equals", "a=b==c="),
        ("like-a-field", "x key=other value=not this"),
        ("like-a-command", "cmd=abort exitcode=3"),
        ("backslashes", r"\n \\ \x41 \"),
        ("signs", "/#$[](),;+-.!\"'%&*:<>?@^_`{|}~"),
        ("tab", "a\tb"),
        ("umlauts", "äöü€"),
        ("bc-80-seg-2/3", "a key with signs"),
        ("hostname[3]", "another one"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into();
    values.extend([1, 2, 255, 256, 512, 1000, 1023].map(|length| (format!("long-{length}"), "v".repeat(length))));
    values.push(("k".repeat(63), "the longest key".to_owned()));
    let own_key = |rank: u32, key: &str| format!("{rank}{}", &key[..key.len().min(60)]);
    for (key, value) in &values {
        pmi.put(own_key(rank, key).as_bytes(), value.as_bytes())?;
    }
    pmi.barrier()?;
    for (key, value) in &values {
        let key = own_key((rank + 1) % size, key);
        check(pmi.get(key.as_bytes())?, value, &key)?;
    }
    pmi.barrier()?;
    Ok(pmi.finalize()?)
}
