// Platforms checks that a module compiles for platforms that nobody here tests on: it reads and type-checks the packages and
// all that they import, from source, which takes a tenth of the time of a build.
//
//	go run ./platforms -dir ../cmd/rlock darwin/amd64 windows/amd64
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"strings"

	"golang.org/x/tools/go/packages"
)

func main() {
	log.SetFlags(0)
	dir := flag.String("dir", ".", "the folder of the module")
	flag.Parse()
	if flag.NArg() == 0 {
		log.Fatal("usage: platforms [-dir DIR] GOOS/GOARCH...")
	}
	failed := false
	for _, platform := range flag.Args() {
		errs, err := check(*dir, platform)
		if err != nil {
			log.Fatal(platform, ": ", err)
		}
		for _, e := range errs {
			failed = true
			fmt.Printf("%s: %v\n", platform, e)
		}
	}
	if failed {
		os.Exit(1)
	}
}

// check returns what is wrong with the packages of a module, and with those that they import.
func check(dir, platform string) (errs []packages.Error, err error) {
	goos, goarch, found := strings.Cut(platform, "/")
	if !found {
		return nil, fmt.Errorf("a platform is GOOS/GOARCH")
	}
	loaded, err := packages.Load(&packages.Config{
		Mode: packages.NeedImports | packages.NeedDeps | packages.NeedTypes | packages.NeedTypesSizes | packages.NeedSyntax | packages.NeedTypesInfo,
		Dir:  dir,
		Env:  append(os.Environ(), "GOOS="+goos, "GOARCH="+goarch, "CGO_ENABLED=0"),
	}, "./...")
	if err != nil {
		return nil, err
	}
	if len(loaded) == 0 {
		return nil, fmt.Errorf("no packages in %s", dir)
	}
	packages.Visit(loaded, nil, func(p *packages.Package) { errs = append(errs, p.Errors...) })
	return errs, nil
}
