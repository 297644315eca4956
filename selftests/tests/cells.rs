// SPDX-License-Identifier: MIT OR Apache-2.0
fn main() -> std::process::ExitCode {
    tramplab::suite::list::main()
}
