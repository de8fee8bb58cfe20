//! Rebuilds the crate when a migration is added: the macro that embeds them notices edits alone.

fn main() {
    println!("cargo:rerun-if-changed=../../migrations/sqlite");
}
