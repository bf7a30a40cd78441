// Release prepares a version, and tries it as its users will get it: from a module proxy, in a fresh module. The
// modules beside the root build here with what is beside them (replace); users get the version that they require.
//
//	go run ./release -dir .. v0.2.0          # tries the version, changes nothing
//	go run ./release -dir .. -write v0.2.0   # has the modules require it
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"
	"golang.org/x/mod/zip"
)

const root = "github.com/go-rlock/rlock"

// published are the folders of the modules that users get, the root first, and what a program uses of each; nothing
// of one that is a program itself, which is installed.
var published = []struct{ dir, use string }{
	{".", "rlock.New"},
	{"rlockotel", "rlockotel.New"},
	{"rlockprom", "rlockprom.New"},
	{"adapters/asynq", "rlockasynq.PerKey"},
	{"adapters/certmagic", "rlockcertmagic.New"},
	{"adapters/fence", "fence.InTx"},
	{"adapters/gocron", "rlockgocron.NewJob"},
	{"adapters/goose", "rlockgoose.New"},
	{"adapters/idempotency", "idempotency.New"},
	{"adapters/migrate", "rlockmigrate.New"},
	{"adapters/named", "named.New"},
	{"adapters/robfigcron", "rlockcron.Parse"},
	{"cmd/rlock", ""},
}

func main() {
	log.SetFlags(0)
	dir := flag.String("dir", "..", "the root of the repository")
	write := flag.Bool("write", false, "have the modules require the version")
	flag.Parse()
	version := flag.Arg(0)
	if flag.NArg() != 1 || semver.Canonical(version) != version {
		log.Fatal("usage: release [-dir DIR] [-write] v1.2.3")
	}
	tmp, err := os.MkdirTemp("", "rlock-release")
	if err != nil {
		log.Fatal(err)
	}
	err = try(*dir, tmp, version)
	if removed := os.RemoveAll(tmp); err == nil {
		err = removed
	}
	if err == nil && *write {
		err = require(*dir, version, false)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// try builds a program in a fresh module that gets each module from a proxy.
func try(dir, tmp, version string) error {
	tree, proxy, user := filepath.Join(tmp, "tree"), filepath.Join(tmp, "proxy"), filepath.Join(tmp, "user")
	if err := os.Mkdir(user, 0o755); err != nil {
		return err
	}
	if err := run(dir, nil, "git", "clone", "--quiet", "--no-hardlinks", ".", tree); err != nil {
		return err
	}
	if err := require(tree, version, true); err != nil {
		return err
	}
	program := "package main\n\n"
	for _, m := range published {
		if err := publish(filepath.Join(tree, m.dir), proxy, pathOf(m.dir), version); err != nil {
			return err
		}
		if m.use != "" {
			program += fmt.Sprintf("import %q\n", pathOf(m.dir))
		}
	}
	program += "\nfunc main() {\n"
	for _, m := range published {
		if m.use != "" {
			program += "\t_ = " + m.use + "\n"
		}
	}
	program += "}\n"
	if err := os.WriteFile(filepath.Join(user, "main.go"), []byte(program), 0o644); err != nil {
		return err
	}
	others, err := exec.Command("go", "env", "GOPROXY").Output()
	if err != nil {
		return err
	}
	env := []string{
		"GOPROXY=file://" + proxy + "," + strings.TrimSpace(string(others)), "GONOSUMDB=" + root + "," + root + "/*",
		"GOMODCACHE=" + filepath.Join(tmp, "modules"), "GOFLAGS=-modcacherw", "GOWORK=off",
	}
	if err := run(user, env, "go", "mod", "init", "user.example/program"); err != nil {
		return err
	}
	get := []string{"get"}            // at once: each raises what the others require
	for _, m := range published[1:] { // with the root that they require
		if m.use != "" {
			get = append(get, pathOf(m.dir)+"@"+version)
			continue
		}
		if err := run(user, append(env, "GOBIN="+filepath.Join(tmp, "bin")), "go", "install", pathOf(m.dir)+"@"+version); err != nil {
			return err
		}
	}
	if err := run(user, env, "go", get...); err != nil {
		return err
	}
	return run(user, env, "go", "build", "-o", os.DevNull, ".")
}

// require has the modules beside the root require it in that version.
func require(dir, version string, asUsers bool) error {
	for _, m := range published[1:] {
		args := []string{"mod", "edit", "-require=" + root + "@" + version}
		if asUsers {
			args = append(args, "-dropreplace="+root)
		}
		if err := run(filepath.Join(dir, m.dir), nil, "go", args...); err != nil {
			return err
		}
	}
	return nil
}

// publish puts a module into a proxy: a folder of the form that GOPROXY takes.
func publish(dir, proxy, path, version string) error {
	to := filepath.Join(proxy, path, "@v")
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return err
	}
	info := fmt.Sprintf("{%q: %q}\n", "Version", version)
	for name, text := range map[string]string{version + ".mod": string(mod), version + ".info": info, "list": version + "\n"} {
		if err := os.WriteFile(filepath.Join(to, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	f, err := os.Create(filepath.Join(to, version+".zip"))
	if err != nil {
		return err
	}
	err = zip.CreateFromDir(f, module.Version{Path: path, Version: version}, dir)
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}

func pathOf(dir string) string {
	if dir == "." {
		return root
	}
	return root + "/" + dir
}

func run(dir string, env []string, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}
