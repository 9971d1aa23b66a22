//! Standard input that a shell shares with `sandboxes`: input that the program in the sandbox does not read is left to the
//! shell's other programs.

use crate::copies::Desk;

#[test]
fn a_loop_over_a_list_runs_for_every_line() {
    let desk = Desk::new();
    desk.run("seq 1 4 >list").assert(0, "");
    let each = "while read -r l; do sandboxes exec v \"echo $l\"; done";
    desk.run(&format!("{each} <list")).assert(0, "1\n2\n3\n4\n");
    desk.run(&format!("cat list | {each}")).assert(0, "1\n2\n3\n4\n");
    let code = "while read -r l; do sandboxes exec v --lang python \"print($l)\"; done";
    desk.run(&format!("{code} <list")).assert(0, "1\n2\n3\n4\n");
}

#[test]
fn a_program_that_ends_before_its_input_comes_reads_none_of_it() {
    // The order of the two is not determined, so there are many runs.
    let desk = Desk::new();
    desk.run("seq 1 60 >list").assert(0, "");
    let each = "while read -r l; do sandboxes exec v true && echo x; done";
    desk.run(&format!("{{ {each}; }} <list | wc -l")).assert(0, "60\n");
}

#[test]
fn only_the_input_that_was_read_is_consumed() {
    let desk = Desk::new();
    // The shell of the sandbox reads no further than the line.
    let parts = "{ sandboxes exec v 'read -r x; echo \"got $x\"'; cat; }";
    desk.run("seq 1 3 >list").assert(0, "");
    desk.run(&format!("{parts} <list")).assert(0, "got 1\n2\n3\n");
    desk.run(&format!("cat list | {parts}")).assert(0, "got 1\n2\n3\n");
    // More than any pipe holds, read completely.
    let all = "seq 1 200000 | sandboxes exec v 'wc -l'; sandboxes exec v 'wc -l' <large";
    desk.run(&format!("seq 1 200000 >large; {all}")).assert(0, "200000\n200000\n");
    // Partly filled pages of the pipe.
    let parts = "for i in $(seq 100); do head -c 3000 /dev/zero; done | sandboxes exec v 'wc -c'";
    desk.run(parts).assert(0, "300000\n");
    // Input that arrives while the program waits for it.
    let slow = "(echo a; sleep 0.3; echo b) | sandboxes exec v cat";
    desk.run(slow).assert(0, "a\nb\n");
}

#[test]
fn no_standard_input_is_read_with_the_flag() {
    let desk = Desk::new();
    let line = "{ sandboxes exec --no-stdin v 'wc -c'; cat; }";
    desk.run(&format!("echo mine | {line}")).assert(0, "0\nmine\n");
}
