// SPDX-License-Identifier: MIT OR Apache-2.0
fn main() -> std::process::ExitCode {
    tramplab_suite::list::main()
}
