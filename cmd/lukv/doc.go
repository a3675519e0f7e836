// Command lukv runs transformer checkpoints, on the processor or an
// accelerator, with a compressed key/value cache. It also measures the profiles
// by which LU-KV divides its budget, and the costs of compression.
//
//	lukv demo                                   see it work on the embedded model
//	lukv run MODEL --context FILE --ratio 0.8 "question"
//	lukv chat MODEL                             talk to a model on a terminal
//	lukv pull OWNER/NAME                        download a model from the hub
//	lukv profile MODEL --metric snapkv -o FILE
//	lukv eval MODEL --data FILE.jsonl --allocator uniform,adakv,lukv --ratio 0.5,0.8
//	lukv inspect MODEL|PROFILE|SESSION
//	lukv bench --shape llama-3.2-1b             measure machine, prefill and decode
//	lukv devices                                list the devices that models can run on
//	lukv tokenize MODEL TEXT                    show a text's tokens
//	lukv template MODEL --user TEXT             show a rendered prompt
//
// Results go to standard output; progress, statistics and errors to standard
// error. An error is one line. Output files appear under their names only once
// they are complete. Interrupt (Ctrl-C) and SIGTERM stop the work cleanly.
//
// Exit status:
//
//	0    done
//	1    failed: missing or damaged file, input or output error, failed items
//	2    crashed: a fault in this program, with a trace to report
//	3    refused: unsupported model, or a profile or saved session of another model
//	4    does not fit: the context, the cache's limit or the device's memory is full
//	5    no device matches --device, or the device was lost
//	64   usage: unknown command, bad flag or value, a flag without effect
//	130  interrupted
//
// The program is package command; one with further metrics or allocators is as short.
package main

import "github.com/lukv/lukv/command"

func main() { command.Main() }
