//! What `--version` says: version, commit, CPU features, cargo features.

/// Version and commit; `build.rs` asks git.
pub(crate) fn long() -> String {
    format!(
        "{} ({})\ncpu: {}\nfeatures: none",
        env!("CARGO_PKG_VERSION"),
        env!("FLASH_MOE_COMMIT"),
        fm_engine::backends::cpu_features()
    )
}
