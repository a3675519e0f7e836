// Package lineedit reads lines from a terminal with editing and history, and
// notices Ctrl-C while the program is busy.
//
// [Open] puts a terminal into raw mode; until Close, all output must go through
// the Terminal, which adds carriage returns to line breaks. ReadLine edits one
// line in a row of the screen that scrolls sideways; a text of several lines, pasted
// or from the history, takes a row for each:
//
//	Left, Right, Ctrl-B, Ctrl-F         move by a character
//	Alt-B, Alt-F, Ctrl-Left, Ctrl-Right move by a word
//	Home, End, Ctrl-A, Ctrl-E           move to the ends
//	Backspace, Delete, Ctrl-H, Ctrl-D   delete a character
//	Ctrl-W, Alt-Backspace, Alt-D        delete a word
//	Ctrl-U, Ctrl-K                      delete to the ends
//	Up, Down, Ctrl-P, Ctrl-N            rows of the text, then history
//	Ctrl-R                              search the history backwards (Ctrl-G: back)
//	Tab                                 complete, as Terminal.Complete says
//	Ctrl-L                              clear the screen
//	Ctrl-C                              ErrInterrupt
//	Ctrl-D in an empty line             io.EOF
//
// Pasted text arrives as one line, line breaks included. What is typed while the
// program is busy is kept for the next line.
//
// # Lifetime and concurrency
//
// A Terminal belongs to one goroutine, except for Write, which any may call. A
// separate goroutine reads the input. It ends with the first read after Close, or
// with the input itself: a read that waits for a key cannot be cancelled.
//
// # Limits
//
// The terminal is assumed to understand the common control sequences of ANSI X3.64.
// Widths are those of single code points, so joined emoji may be drawn off by a
// column.
package lineedit
