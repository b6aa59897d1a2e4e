//! Where the runner finds libtorch at run time: beside its own folder (`bin/modelless-runner-torch`,
//! `lib/libtorch_cpu.so`), or where the builder says.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=MODELLESS_LIBTORCH_RPATH");
    // All of libtorch, also what no symbol is taken from: a GPU's part registers itself.
    println!("cargo:rustc-link-arg=-Wl,--no-as-needed");
    println!("cargo:rustc-link-arg=-ltorch");
    let lib = std::env::var("MODELLESS_LIBTORCH_RPATH").unwrap_or_else(|_| "$ORIGIN/../lib".to_owned());
    println!("cargo:rustc-link-arg=-Wl,-rpath,{lib}");
}
