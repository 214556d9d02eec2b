//! Mutations of inputs from a seed, as libFuzzer makes them but without its feedback.

/// Inputs do not grow beyond this.
const BYTES_MAX: usize = 16 * 1024;
/// The most changes to one input.
const CHANGES_MAX: usize = 5;
/// Numbers at the bounds of their types.
const NUMBERS: [u64; 12] =
    [0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 0x7fff_ffff_ffff_ffff, u64::MAX];

/// Makes inputs out of a corpus.
pub(crate) struct Mutator<'a> {
    corpus: &'a [Vec<u8>],
    state: u64,
}

impl<'a> Mutator<'a> {
    pub(crate) fn new(seed: u64, corpus: &'a [Vec<u8>]) -> Self {
        Self { corpus, state: seed }
    }

    /// Returns an input of the corpus with a few changes.
    pub(crate) fn next_input(&mut self) -> Vec<u8> {
        let mut input = self.any_input().to_vec();
        for _ in 0..=self.below(CHANGES_MAX) {
            self.change(&mut input);
        }
        input.truncate(BYTES_MAX);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let at = self.below(input.len() + 1);
        let end = at + self.below((input.len() - at).min(64) + 1);
        match self.below(9) {
            // A bit, or a whole byte.
            0 => input.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << self.below(8)),
            1 => input.iter_mut().skip(at).take(1).for_each(|byte| *byte = self.next() as u8),
            2 => drop(input.drain(at..end)),
            3 => {
                let copy = input[at..end].to_vec();
                let times = 1 + self.below(3);
                input.splice(at..at, copy.repeat(times));
            }
            4 => drop(input.splice(at..at, [self.next() as u8])),
            // A part of another input.
            5 => {
                let other = self.any_input();
                let from = self.below(other.len() + 1);
                let to = from + self.below((other.len() - from).min(256) + 1);
                input.splice(at..end, other[from..to].iter().copied());
            }
            // A number in text.
            6 => {
                let number = self.number().to_string();
                input.splice(at..end, number.into_bytes());
            }
            // A number in binary, of either order.
            7 => {
                let bytes = self.number().to_le_bytes();
                let width = 1 << self.below(4);
                let mut bytes = bytes[..width].to_vec();
                if self.below(2) == 0 {
                    bytes.reverse();
                }
                let end = (at + width).min(input.len());
                input.splice(at..end, bytes);
            }
            _ => input.truncate(at),
        }
    }

    fn number(&mut self) -> u64 {
        let near = self.below(3) as u64;
        NUMBERS[self.below(NUMBERS.len())].wrapping_add(near).wrapping_sub(1)
    }

    fn any_input(&mut self) -> &'a [u8] {
        &self.corpus[self.below(self.corpus.len())]
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[test]
fn a_seed_always_makes_the_same_inputs() {
    let corpus = [b"one".to_vec(), Vec::new(), vec![7; 300]];
    let inputs = |seed| {
        let mut mutator = Mutator::new(seed, &corpus);
        (0..1000).map(|_| mutator.next_input()).collect::<Vec<_>>()
    };
    assert_eq!(inputs(1), inputs(1));
    assert_ne!(inputs(1), inputs(2));
    assert!(inputs(1).iter().all(|input| input.len() <= BYTES_MAX));
}
