// Release makes a version, and tries it as its users will get it: from a module proxy, in a fresh module, and by go
// install. The other modules build here with the modules next to them (replace); what is tagged has no replace, and
// requires the root in that version. So the tags are on a commit of their own, which follows the last one and is on no
// branch.
//
//	go run ./release -dir .. v0.2.0                       # tries the version, changes nothing
//	go run ./release -dir .. -write v0.2.0                # keeps the commit and its tags, to be pushed
//	go run ./release -dir .. -published -out dist v0.2.0  # binaries and image of a version that has been pushed
package main

import (
	"debug/buildinfo"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"
	"golang.org/x/mod/sumdb/dirhash"
	"golang.org/x/mod/zip"
)

const root = "github.com/go-rlock/rlock"

type publishedModule struct {
	dir     string
	use     string // what a program uses of it; empty if it is only a program
	program string // the folder of its program, which users install; empty if it has none
	plugin  string // the folder of its package that a program of others imports for its effect; empty if it has none
}

// published are the modules that users get, each after those that it requires.
var published = []publishedModule{
	{dir: ".", use: "rlock.New"},
	{dir: "rlockotel", use: "rlockotel.New"},
	{dir: "rlockprom", use: "rlockprom.New"},
	{dir: "rlockui", use: "rlockui.Handler"},
	{dir: "adapters/asynq", use: "rlockasynq.PerKey"},
	{dir: "adapters/certmagic", use: "rlockcertmagic.New"},
	{dir: "adapters/fence", use: "fence.InTx"},
	{dir: "adapters/gocron", use: "rlockgocron.NewJob"},
	{dir: "adapters/goose", use: "rlockgoose.New"},
	{dir: "adapters/idempotency", use: "idempotency.New"},
	{dir: "adapters/migrate", use: "rlockmigrate.New"},
	{dir: "adapters/named", use: "named.New"},
	{dir: "adapters/robfigcron", use: "rlockcron.Parse"},
	{dir: "rlockvet", use: "rlockvet.New", program: "rlockvet/cmd/rlockvet", plugin: "rlockvet/golangci"},
	{dir: tool, program: tool},
}

func main() {
	log.SetFlags(0)
	dir := flag.String("dir", "..", "the root of the repository")
	write := flag.Bool("write", false, "keep the commit and its tags")
	published := flag.Bool("published", false, "the tags have been pushed: do not try the version, and get it as users do")
	out := flag.String("out", "", "make the binaries, and write them into this folder")
	only := flag.String("platform", "", "the only platform to make a binary for, such as linux/amd64")
	flag.Parse()
	version := flag.Arg(0)
	if flag.NArg() != 1 || semver.Canonical(version) != version || *published && *write {
		log.Fatal("usage: release [-dir DIR] [-write | -published] [-out DIR [-platform linux/amd64]] v1.2.3")
	}
	wanted := slices.DeleteFunc(slices.Clone(platforms), func(p platform) bool { return *only != "" && p.String() != *only })
	if len(wanted) == 0 {
		log.Fatalf("no binary is made for %q", *only)
	}
	tmp, err := os.MkdirTemp("", "rlock-release")
	if err != nil {
		log.Fatal(err)
	}
	var env []string
	if !*published {
		env, err = try(*dir, tmp, version)
	}
	if err == nil && *out != "" {
		err = binaries(*dir, tmp, *out, version, env, wanted)
	}
	if err == nil && *write {
		err = keep(*dir, filepath.Join(tmp, "tree"), version)
	}
	if removed := os.RemoveAll(tmp); err == nil {
		err = removed
	}
	if err != nil {
		log.Fatal(err)
	}
}

// try tags the version in a clone, builds a program in a fresh module that gets each module from a proxy, and installs
// the command line tool. It returns the environment in which go gets the modules from that proxy.
func try(dir, tmp, version string) (env []string, err error) {
	tree, user := filepath.Join(tmp, "tree"), filepath.Join(tmp, "user")
	if env, err = proxied(dir, tmp, version, published...); err != nil {
		return nil, err
	}
	if err := os.Mkdir(user, 0o755); err != nil {
		return nil, err
	}
	imports, body := "", ""
	get := []string{"get"} // together: each raises what the others require
	for _, m := range published {
		if m.program != "" {
			if err := install(tree, tmp, user, env, m, version); err != nil {
				return nil, err
			}
		}
		if m.use == "" {
			continue
		}
		imports += fmt.Sprintf("import %q\n", pathOf(m.dir))
		body += "\t_ = " + m.use + "\n"
		if m.dir != "." { // the others require the root
			get = append(get, pathOf(m.dir)+"@"+version)
		}
		if m.plugin != "" {
			imports += fmt.Sprintf("import _ %q\n", pathOf(m.plugin))
			get = append(get, pathOf(m.plugin)+"@"+version)
		}
	}
	program := "package main\n\n" + imports + "\nfunc main() {\n" + body + "}\n"
	if err := os.WriteFile(filepath.Join(user, "main.go"), []byte(program), 0o644); err != nil {
		return nil, err
	}
	for _, args := range [][]string{{"mod", "init", "user.example/program"}, get, {"build", "-o", os.DevNull, "."}} {
		if err := run(user, env, "go", args...); err != nil {
			return nil, err
		}
	}
	return env, nil
}

// proxied tags the version in a clone, and puts modules of it into a proxy. It returns the environment in which go gets
// them from there.
func proxied(dir, tmp, version string, all ...publishedModule) (env []string, err error) {
	tree, proxy := filepath.Join(tmp, "tree"), filepath.Join(tmp, "proxy")
	if err := run(dir, nil, "git", "clone", "--quiet", "--no-hardlinks", ".", tree); err != nil {
		return nil, err
	}
	if err := tag(tree, version); err != nil {
		return nil, err
	}
	for _, m := range all {
		if err := publish(tree, m.dir, proxy, version); err != nil {
			return nil, err
		}
	}
	others, err := exec.Command("go", "env", "GOPROXY").Output()
	if err != nil {
		return nil, err
	}
	return []string{
		"GOPROXY=file://" + proxy + "," + strings.TrimSpace(string(others)), "GONOSUMDB=" + root + "," + root + "/*",
		"GOMODCACHE=" + filepath.Join(tmp, "modules"), "GOFLAGS=-modcacherw", "GOWORK=off",
	}, nil
}

// install installs the program of a module, which has to be of the version, as the tool has to say too, and builds it in the
// commit that is tagged.
func install(tree, tmp, user string, env []string, m publishedModule, version string) error {
	bin := filepath.Join(tmp, "bin")
	if err := run(user, append(env, "GOBIN="+bin), "go", "install", pathOf(m.program)+"@"+version); err != nil {
		return err
	}
	program := filepath.Join(bin, filepath.Base(m.program))
	if info, err := buildinfo.ReadFile(program); err != nil || info.Main.Path != pathOf(m.dir) || info.Main.Version != version {
		return fmt.Errorf("%s: %v: %+v is not %s", m.program, err, info, version)
	}
	if m.dir == tool {
		out, err := exec.Command(program, "--version").CombinedOutput()
		if err != nil || !strings.Contains(string(out), version) {
			return fmt.Errorf("%s --version: %v: %q is not %s", tool, err, out, version)
		}
	}
	return run(filepath.Join(tree, m.program), env, "go", "build", "-mod=readonly", "-o", os.DevNull, ".")
}

// tag makes the commit of a version, and its tags: one for each module.
func tag(tree, version string) error {
	who, err := exec.Command("git", "-C", tree, "log", "-1", "--format=GIT_AUTHOR_NAME=%cn%nGIT_AUTHOR_EMAIL=%ce%nGIT_COMMITTER_NAME=%cn%nGIT_COMMITTER_EMAIL=%ce").Output()
	if err != nil {
		return err
	}
	env := strings.Split(strings.TrimSpace(string(who)), "\n")
	commit := []string{"commit", "--quiet", "--all", "-m", version + ": each module requires the others in this version"}
	for _, m := range published[1:] {
		if err := require(tree, m.dir, version); err != nil {
			return err
		}
		// A later module that requires this one needs its sums, which are made of what is committed.
		if err := run(tree, env, "git", commit...); err != nil {
			return err
		}
		commit = []string{"commit", "--quiet", "--all", "--amend", "--no-edit"}
	}
	for _, name := range tags(version) {
		if err := run(tree, nil, "git", "tag", name); err != nil {
			return err
		}
	}
	return nil
}

// require has a module require the modules of this repository in a version, in place of the folders next to it.
func require(tree, module, version string) error {
	dir := filepath.Join(tree, module)
	file, err := parse(dir)
	if err != nil {
		return err
	}
	for _, r := range file.Require {
		i := slices.IndexFunc(published, func(m publishedModule) bool { return pathOf(m.dir) == r.Mod.Path })
		if i < 0 {
			continue
		}
		if err := run(dir, nil, "go", "mod", "edit", "-require="+r.Mod.Path+"@"+version, "-dropreplace="+r.Mod.Path); err != nil {
			return err
		}
		sums, err := sumsOf(tree, published[i].dir, version)
		if err != nil {
			return err
		}
		if err := addSums(filepath.Join(dir, "go.sum"), sums); err != nil {
			return err
		}
	}
	if file, err = parse(dir); err == nil && len(file.Replace) > 0 {
		err = fmt.Errorf("%s/go.mod still has a replace: go install refuses it", module)
	}
	return err
}

func parse(dir string) (*modfile.File, error) {
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return nil, err
	}
	return modfile.Parse("go.mod", mod, nil)
}

func tags(version string) (all []string) {
	for _, m := range published {
		all = append(all, strings.TrimPrefix(m.dir+"/"+version, "./"))
	}
	return all
}

// keep has the repository have the commit and the tags.
func keep(dir, tree, version string) error {
	args := []string{"fetch", "--quiet", "--no-tags", tree}
	for _, name := range tags(version) {
		args = append(args, "refs/tags/"+name+":refs/tags/"+name)
	}
	if err := run(dir, nil, "git", args...); err != nil {
		return err
	}
	fmt.Println("git push origin", strings.Join(tags(version), " "))
	return nil
}

// sumsOf are the lines of a go.sum for a module, as it is committed.
func sumsOf(tree, dir, version string) ([]string, error) {
	f, err := os.CreateTemp("", "rlock-*.zip")
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name())
	err = zip.CreateFromVCS(f, module.Version{Path: pathOf(dir), Version: version}, tree, "HEAD", strings.TrimPrefix(dir, "."))
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return nil, err
	}
	whole, err := dirhash.HashZip(f.Name(), dirhash.Hash1)
	if err != nil {
		return nil, err
	}
	mod, err := dirhash.Hash1([]string{"go.mod"}, func(string) (io.ReadCloser, error) { return os.Open(filepath.Join(tree, dir, "go.mod")) })
	what := pathOf(dir) + " " + version
	return []string{what + " " + whole, what + "/go.mod " + mod}, err
}

func addSums(file string, more []string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	lines := append(strings.Split(strings.TrimSpace(string(text)), "\n"), more...)
	slices.Sort(lines)
	return os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o644)
}

// publish puts what is tagged of a module into a proxy: a folder of the form that GOPROXY takes.
func publish(tree, dir, proxy, version string) error {
	path := pathOf(dir)
	to := filepath.Join(proxy, path, "@v")
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	sub := strings.TrimPrefix(dir, ".")
	revision := strings.TrimPrefix(dir+"/"+version, "./")
	mod, err := exec.Command("git", "-C", tree, "show", revision+":"+filepath.Join(sub, "go.mod")).Output()
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
	err = zip.CreateFromVCS(f, module.Version{Path: path, Version: version}, tree, revision, sub)
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
