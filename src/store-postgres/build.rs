//! A new migration is a reason to build again; Cargo does not see it by itself.

fn main() {
    println!("cargo:rerun-if-changed=../../migrations/postgres");
}
