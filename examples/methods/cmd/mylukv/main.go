// Command mylukv is the command lukv with the methods of this module.
package main

import (
	"github.com/lukv/lukv/command"

	_ "github.com/lukv/lukv/examples/methods"
)

func main() { command.Main() }
