//! What `--version` says: version, commit, CPU features, cargo features.

/// The commit that this was built from; `build.rs` asks git.
pub(crate) const COMMIT: &str = env!("FLASH_MOE_COMMIT");

/// Version and commit.
pub(crate) fn long() -> String {
    format!(
        "{} ({})\ncpu: {}\nfeatures: none",
        env!("CARGO_PKG_VERSION"),
        COMMIT,
        fm_engine::backends::cpu_features()
    )
}
