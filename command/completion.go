package command

import (
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/lukv/lukv/lukv"
)

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish,powershell" help:"Shell: bash, zsh, fish or powershell."`
}

func (completionCmd) Help() string {
	return `The script comes from the same description as the help, so that it has every command and flag of this very program.

Examples:

  lukv completion bash > /etc/bash_completion.d/lukv

  lukv completion zsh > "${fpath[1]}/_lukv"

  lukv completion fish > ~/.config/fish/completions/lukv.fish

  lukv completion powershell >> $PROFILE`
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
	case "powershell":
		powershellCompletion(&b, parser.Model)
	}
	_, err = io.WriteString(e.out, b.String())
	return err
}

// commandsOf returns the commands that help lists, a group's commands one by one.
func commandsOf(app *kong.Application) []*kong.Node { return app.Leaves(true) }

// groupsOf returns the visible commands that have subcommands.
func groupsOf(app *kong.Application) []*kong.Node {
	var out []*kong.Node
	for _, c := range app.Children {
		if !c.Hidden && !c.Leaf() {
			out = append(out, c)
		}
	}
	return out
}

// within returns the commands that may follow the name of a group or of the program.
func within(parent *kong.Node) []*kong.Node {
	var out []*kong.Node
	for _, c := range parent.Children {
		if !c.Hidden {
			out = append(out, c)
		}
	}
	return out
}

// namesOf joins the names of commands.
func namesOf(commands []*kong.Node, separator string) string {
	var out []string
	for _, c := range commands {
		out = append(out, c.Name)
	}
	return strings.Join(out, separator)
}

// flagsOf returns the flags of a command, including those of all commands.
func flagsOf(app *kong.Application, c *kong.Node) []*kong.Flag {
	var out []*kong.Flag
	for _, f := range append(append([]*kong.Flag{}, app.Flags...), c.Flags...) {
		if !f.Hidden {
			out = append(out, f)
		}
	}
	return out
}

// valuesOf returns the words that a value is limited to, or the names that are known for
// it; nil if there are none or the flag takes no value.
func valuesOf(v *kong.Value) []string {
	if v.Enum != "" {
		return strings.Split(v.Enum, ",")
	}
	switch v.Name {
	case "metric":
		return lukv.Metrics()
	case "allocator":
		return lukv.Allocators()
	case "preset":
		return lukv.PolicyPresets()
	}
	return nil
}

// takesModel reports whether the argument of a command can be the name of a model in the
// hub's cache.
func takesModel(c *kong.Node) bool {
	if len(c.Positional) == 0 {
		return false
	}
	name := c.Positional[0].Name
	return name == "model" || c.Name == "inspect" && name == "path" || c.Name == "rm" && name == "name"
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
	fmt.Fprintf(b, `# bash completion of %[3]s
_%[3]s_models() { echo builtin; "${COMP_WORDS[0]}" list 2>/dev/null | cut -f 1; }
_%[3]s() {
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command= word
	for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
		case $word in -*) continue ;; esac
		command="${command:+$command }$word"
		case $word in %[1]s) ;; *) break ;; esac
	done
	case $command in
	"") COMPREPLY=($(compgen -W %[2]q -- "$cur")); return ;;
`, namesOf(groupsOf(app), "|"), namesOf(within(app.Node), " "), app.Name)
	for _, g := range groupsOf(app) {
		fmt.Fprintf(b, "\t%s) COMPREPLY=($(compgen -W %q -- \"$cur\")); return ;;\n", g.Name, namesOf(within(g), " "))
	}
	for _, c := range commandsOf(app) {
		var words []string
		fmt.Fprintf(b, "\t%q)\n\t\tcase $prev in\n", c.Path())
		for _, f := range flagsOf(app, c) {
			words = append(words, names(f)...)
			if values := valuesOf(f.Value); values != nil {
				fmt.Fprintf(b, "\t\t%s) COMPREPLY=($(compgen -W %q -- \"$cur\")); return ;;\n", strings.Join(names(f), "|"), strings.Join(values, " "))
			}
		}
		fmt.Fprintf(b, "\t\tesac\n\t\tcase $cur in -*) COMPREPLY=($(compgen -W %q -- \"$cur\")); return ;; esac\n", strings.Join(words, " "))
		if takesModel(c) {
			fmt.Fprintf(b, "\t\tCOMPREPLY=($(compgen -f -W \"$(_%s_models)\" -- \"$cur\")); return\n", app.Name)
		}
		b.WriteString("\t\t;;\n")
	}
	fmt.Fprintf(b, "\tesac\n\tCOMPREPLY=($(compgen -f -- \"$cur\"))\n}\ncomplete -o filenames -F _%[1]s %[1]s\n", app.Name)
}

// firstSentence returns the first sentence of a help text, without its full stop.
func firstSentence(help string) string {
	text, _, _ := strings.Cut(help, "\n")
	text, _, _ = strings.Cut(text, ". ")
	return strings.TrimSuffix(text, ".")
}

func zshCompletion(b *strings.Builder, app *kong.Application) {
	// These characters are special in a zsh specification.
	quote := strings.NewReplacer("'", `'\''`, "[", `\[`, "]", `\]`, ":", `\:`)
	// choose writes code that takes a command's name off the words, or offers the names.
	choose := func(tabs string, parent *kong.Node) {
		fmt.Fprintf(b, "%scommands=(\n", tabs)
		for _, c := range within(parent) {
			fmt.Fprintf(b, "%s\t'%s:%s'\n", tabs, c.Name, quote.Replace(firstSentence(c.Help)))
		}
		for _, line := range []string{
			")", "if (( CURRENT == 2 )); then", "\t_describe command commands", "\treturn", "fi",
			"command=\"${command:+$command }$words[2]\"", "shift words", "(( CURRENT-- ))",
		} {
			fmt.Fprintf(b, "%s%s\n", tabs, line)
		}
	}
	fmt.Fprintf(b, "#compdef %[1]s\n# zsh completion of %[1]s\n_%[1]s_models() {\n\tlocal -a models=(builtin ${(f)\"$(%[1]s list 2>/dev/null | cut -f 1)\"})\n\tcompadd -a models\n\t_files\n}\n_%[1]s() {\n\tlocal -a commands\n\tlocal command=\n", app.Name)
	choose("\t", app.Node)
	b.WriteString("\tcase $command in\n")
	for _, g := range groupsOf(app) {
		fmt.Fprintf(b, "\t%s)\n", g.Name)
		choose("\t\t", g)
		b.WriteString("\t\t;;\n")
	}
	b.WriteString("\tesac\n\tcase $command in\n")
	for _, c := range commandsOf(app) {
		fmt.Fprintf(b, "\t%q)\n\t\t_arguments -s \\\n", c.Path())
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
		action := "_files"
		if takesModel(c) {
			action = "_" + app.Name + "_models"
		}
		fmt.Fprintf(b, "\t\t\t'*: :%s' ;;\n", action)
	}
	fmt.Fprintf(b, "\tesac\n}\n_%s \"$@\"\n", app.Name)
}

func fishCompletion(b *strings.Builder, app *kong.Application) {
	quote := func(s string) string { return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(s) + "'" }
	fmt.Fprintf(b, "# fish completion of %s\n", app.Name)
	for _, c := range within(app.Node) {
		fmt.Fprintf(b, "complete -c %s -n __fish_use_subcommand -f -a %s -d %s\n", app.Name, c.Name, quote(firstSentence(c.Help)))
	}
	for _, g := range groupsOf(app) {
		for _, c := range within(g) {
			fmt.Fprintf(b, "complete -c %s -n '__fish_seen_subcommand_from %s; and not __fish_seen_subcommand_from %s' -f -a %s -d %s\n",
				app.Name, g.Name, namesOf(within(g), " "), c.Name, quote(firstSentence(c.Help)))
		}
	}
	for _, c := range commandsOf(app) {
		seen := "'__fish_seen_subcommand_from " + strings.ReplaceAll(c.Path(), " ", "; and __fish_seen_subcommand_from ") + "'"
		if takesModel(c) {
			fmt.Fprintf(b, "complete -c %[1]s -n %[2]s -a '(echo builtin; %[1]s list 2>/dev/null | cut -f 1)' -d model\n", app.Name, seen)
		}
		for _, f := range flagsOf(app, c) {
			fmt.Fprintf(b, "complete -c %s -n %s -l %s", app.Name, seen, f.Name)
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
				fmt.Fprintf(b, "complete -c %s -n %s -l no-%s\n", app.Name, seen, f.Name)
			}
		}
	}
}

func powershellCompletion(b *strings.Builder, app *kong.Application) {
	quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
	array := func(words []string) string {
		var out []string
		for _, w := range words {
			out = append(out, quote(w))
		}
		return "@(" + strings.Join(out, ", ") + ")"
	}
	var commands, flags, values, help, models []string
	add := func(to *[]string, key, value string) { *to = append(*to, "\t\t"+quote(key)+" = "+value) }
	choose := func(command string, parent *kong.Node) {
		add(&commands, command, array(strings.Fields(namesOf(within(parent), " "))))
		for _, c := range within(parent) {
			add(&help, strings.TrimSpace(command+" "+c.Name), quote(firstSentence(c.Help)))
		}
	}
	choose("", app.Node)
	for _, g := range groupsOf(app) {
		choose(g.Name, g)
	}
	for _, c := range commandsOf(app) {
		var words []string
		for _, f := range flagsOf(app, c) {
			words = append(words, names(f)...)
			add(&help, c.Path()+" --"+f.Name, quote(firstSentence(f.Help)))
			if known := valuesOf(f.Value); known != nil {
				for _, name := range names(f) {
					add(&values, c.Path()+" "+name, array(known))
				}
			}
		}
		add(&flags, c.Path(), array(words))
		if takesModel(c) {
			models = append(models, c.Path())
		}
	}
	fmt.Fprintf(b, "# PowerShell completion of %s\nRegister-ArgumentCompleter -Native -CommandName %s -ScriptBlock {\n\tparam($word, $line, $cursor)\n", app.Name, quote(app.Name))
	for _, t := range []struct {
		name    string
		entries []string
	}{{"commands", commands}, {"flags", flags}, {"values", values}, {"help", help}} {
		fmt.Fprintf(b, "\t$%s = @{\n%s\n\t}\n", t.name, strings.Join(t.entries, "\n"))
	}
	fmt.Fprintf(b, "\t$models = %s\n", array(models))
	// Without results PowerShell offers files.
	fmt.Fprintf(b, `	$command = ''
	$previous = ''
	foreach ($element in $line.CommandElements | Select-Object -Skip 1) {
		if ($element.Extent.EndOffset -ge $cursor) { break }
		$previous = $element.ToString()
		if ($commands[$command] -ccontains $previous) { $command = "$command $previous".Trim() }
	}
	$words = if ($values.ContainsKey("$command $previous")) { $values["$command $previous"] }
	elseif ("$word".StartsWith('-')) { $flags[$command] }
	elseif ($commands.ContainsKey($command)) { $commands[$command] }
	elseif ($models -ccontains $command) { @('builtin') + @(& %s list 2>$null | ForEach-Object { ($_ -split "`+"`t"+`")[0] }) }
	$words | Where-Object { $_ -clike "$word*" } | ForEach-Object {
		$about = $help["$command $_".Trim()]
		[System.Management.Automation.CompletionResult]::new($_, $_, 'ParameterValue', $(if ($about) { $about } else { $_ }))
	}
}
`, quote(app.Name))
}
