// Package command is the command lukv as a package, so that a program can have it together
// with metrics and allocators of its own:
//
//	package main
//
//	import (
//		"github.com/lukv/lukv/command"
//
//		_ "example.com/mymetric" // calls lukv.RegisterMetric
//	)
//
//	func main() { command.Main() }
//
// Its profile, eval, report, serve and all other subcommands know the metric by its name, as does
// its completion script. The program goes by the name of its main package. Built with the tag
// novulkan, it has no driver of GPUs.
//
// Each subcommand is one file: its struct holds the flags, its Run does the work. A new
// one is a field of cli.
package command
