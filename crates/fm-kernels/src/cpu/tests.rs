//! The CPU against the suite, on every instruction set, and against itself.

mod on_two_threads {
    crate::conformance!(crate::Cpu::open(2));
}

mod portable {
    use crate::cpu::{Cpu, Level};
    crate::conformance!(Cpu::with_level(Level::portable(), 1));
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use crate::cpu::{Cpu, Level};
    crate::conformance!(maybe Level::avx2().map(|level| Cpu::with_level(level, 1)));
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use crate::cpu::{Cpu, Level};
    crate::conformance!(maybe Level::avx512().map(|level| Cpu::with_level(level, 1)));
}
