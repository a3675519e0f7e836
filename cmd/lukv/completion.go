package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kong"
)

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

func (completionCmd) Help() string {
	return `The script comes from the same description as the help, so that it has every command and flag of this very program.

Examples:

  lukv completion bash > /etc/bash_completion.d/lukv

  lukv completion zsh > "${fpath[1]}/_lukv"

  lukv completion fish > ~/.config/fish/completions/lukv.fish`
}

func (c *completionCmd) Run(e *env) error {
	parser, err := newParser(new(cli))
	if err != nil {
		return err
	}
	var b strings.Builder
	switch c.Shell {
	case "bash":
		bashCompletion(&b, parser.Model)
	case "zsh":
		zshCompletion(&b, parser.Model)
	case "fish":
		fishCompletion(&b, parser.Model)
	}
	_, err = io.WriteString(e.out, b.String())
	return err
}

// commandsOf are the commands that help lists.
func commandsOf(app *kong.Application) []*kong.Node {
	var out []*kong.Node
	for _, c := range app.Children {
		if !c.Hidden {
			out = append(out, c)
		}
	}
	return out
}

// flagsOf are the flags of a command, those of all commands included.
func flagsOf(app *kong.Application, c *kong.Node) []*kong.Flag {
	var out []*kong.Flag
	for _, f := range append(append([]*kong.Flag{}, app.Flags...), c.Flags...) {
		if !f.Hidden {
			out = append(out, f)
		}
	}
	return out
}

// valuesOf are the words that a value can be, nil if any; a flag without a value
// has none.
func valuesOf(v *kong.Value) []string {
	if v.Enum == "" {
		return nil
	}
	return strings.Split(v.Enum, ",")
}

// takesFile reports whether a flag's value is the name of a file.
func takesFile(f *kong.Flag) bool { return strings.HasPrefix(f.PlaceHolder, "FILE") }

func names(f *kong.Flag) []string {
	out := []string{"--" + f.Name}
	if f.Short != 0 {
		out = append(out, "-"+string(f.Short))
	}
	if f.Tag.Negatable != "" {
		out = append(out, "--no-"+f.Name)
	}
	return out
}

func bashCompletion(b *strings.Builder, app *kong.Application) {
	var commands []string
	for _, c := range commandsOf(app) {
		commands = append(commands, c.Name)
	}
	fmt.Fprintf(b, `# bash completion of lukv
_lukv() {
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command= word
	for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
		case $word in -*) ;; *) command=$word; break ;; esac
	done
	if [ -z "$command" ]; then
		COMPREPLY=($(compgen -W %q -- "$cur"))
		return
	fi
	case $command in
`, strings.Join(commands, " "))
	for _, c := range commandsOf(app) {
		var words []string
		fmt.Fprintf(b, "\t%s)\n\t\tcase $prev in\n", c.Name)
		for _, f := range flagsOf(app, c) {
			words = append(words, names(f)...)
			if values := valuesOf(f.Value); values != nil {
				fmt.Fprintf(b, "\t\t%s) COMPREPLY=($(compgen -W %q -- \"$cur\")); return ;;\n", strings.Join(names(f), "|"), strings.Join(values, " "))
			}
		}
		fmt.Fprintf(b, "\t\tesac\n\t\tcase $cur in -*) COMPREPLY=($(compgen -W %q -- \"$cur\")); return ;; esac ;;\n", strings.Join(words, " "))
	}
	b.WriteString("\tesac\n\tCOMPREPLY=($(compgen -f -- \"$cur\"))\n}\ncomplete -o filenames -F _lukv lukv\n")
}

// firstSentence is a help text up to its first end of a sentence.
func firstSentence(help string) string {
	text, _, _ := strings.Cut(help, "\n")
	text, _, _ = strings.Cut(text, ". ")
	return strings.TrimSuffix(text, ".")
}

func zshCompletion(b *strings.Builder, app *kong.Application) {
	// In a specification, these separate its parts.
	quote := strings.NewReplacer("'", `'\''`, "[", `\[`, "]", `\]`, ":", `\:`)
	b.WriteString("#compdef lukv\n# zsh completion of lukv\n_lukv() {\n\tlocal -a commands\n\tcommands=(\n")
	for _, c := range commandsOf(app) {
		fmt.Fprintf(b, "\t\t'%s:%s'\n", c.Name, quote.Replace(firstSentence(c.Help)))
	}
	b.WriteString("\t)\n\tif (( CURRENT == 2 )); then\n\t\t_describe command commands\n\t\treturn\n\tfi\n\tlocal command=$words[2]\n\tshift words\n\t(( CURRENT-- ))\n\tcase $command in\n")
	for _, c := range commandsOf(app) {
		fmt.Fprintf(b, "\t%s)\n\t\t_arguments -s \\\n", c.Name)
		for _, f := range flagsOf(app, c) {
			for _, name := range names(f) {
				fmt.Fprintf(b, "\t\t\t'*%s[%s]", name, quote.Replace(firstSentence(f.Help)))
				switch values := valuesOf(f.Value); {
				case f.IsBool():
				case values != nil:
					fmt.Fprintf(b, ":%s:(%s)", f.Name, strings.Join(values, " "))
				case takesFile(f):
					fmt.Fprintf(b, ":%s:_files", f.Name)
				default:
					fmt.Fprintf(b, ":%s: ", f.Name)
				}
				b.WriteString("' \\\n")
			}
		}
		b.WriteString("\t\t\t'*: :_files' ;;\n")
	}
	b.WriteString("\tesac\n}\n_lukv \"$@\"\n")
}

func fishCompletion(b *strings.Builder, app *kong.Application) {
	quote := func(s string) string { return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(s) + "'" }
	b.WriteString("# fish completion of lukv\n")
	for _, c := range commandsOf(app) {
		fmt.Fprintf(b, "complete -c lukv -n __fish_use_subcommand -f -a %s -d %s\n", c.Name, quote(firstSentence(c.Help)))
	}
	for _, c := range commandsOf(app) {
		for _, f := range flagsOf(app, c) {
			fmt.Fprintf(b, "complete -c lukv -n '__fish_seen_subcommand_from %s' -l %s", c.Name, f.Name)
			if f.Short != 0 {
				fmt.Fprintf(b, " -s %c", f.Short)
			}
			switch values := valuesOf(f.Value); {
			case f.IsBool():
			case values != nil:
				fmt.Fprintf(b, " -x -a %s", quote(strings.Join(values, " ")))
			case takesFile(f):
				b.WriteString(" -r -F")
			default:
				b.WriteString(" -x")
			}
			fmt.Fprintf(b, " -d %s\n", quote(firstSentence(f.Help)))
			if f.Tag.Negatable != "" {
				fmt.Fprintf(b, "complete -c lukv -n '__fish_seen_subcommand_from %s' -l no-%s\n", c.Name, f.Name)
			}
		}
	}
}
