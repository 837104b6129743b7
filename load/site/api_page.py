"""The parts of docs/http-api.md that follow from the API's resources: its tables, and the examples.

    python -m load.site.api_page       # writes them again, after a change of tidemark_dashboard/api

`clients/dashboard/tests/test_dashboard_examples.py` fails while the page differs, and runs the examples.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import urlencode

from tidemark_dashboard.api import BASE, EVENTS
from tidemark_dashboard.api.parameters import Parameter
from tidemark_dashboard.api.problems import TITLES
from tidemark_dashboard.api.resources import BY_NAME, RESOURCES, Resource

PAGE = Path(__file__).resolve().parents[2] / "docs" / "http-api.md"
ADDRESS = "http://127.0.0.1:9500"
"""Where the examples find the dashboard, unless TIDEMARK_URL says another place."""
_PART = "<!-- {name} -->\n{text}<!-- end -->"


def text() -> str:
    """Return the page as it must be."""
    page = PAGE.read_text(encoding="utf-8")
    for name, lines in (("addresses", _addresses()), ("problems", _problems()), ("curl", _curl()), *_programs()):
        part = _PART.format(name=name, text="".join(f"{line}\n" for line in lines))
        found = re.findall(rf"<!-- {name} -->\n.*?<!-- end -->", page, flags=re.DOTALL)
        if len(found) != 1:
            raise ValueError(f"{PAGE} has {len(found)} parts {name!r}")
        page = page.replace(found[0], part)
    return page


def programs() -> Mapping[str, str]:
    """Return the example of each language by the name of its file."""
    path, stream = _path(BY_NAME["current"], f"{BASE}/"), _path(BY_NAME["current"], f"{EVENTS}/")
    return {
        name: each.replace("ADDRESS", ADDRESS).replace("PATH", path).replace("STREAM", stream)
        for name, each in (("Example.java", _JAVA), ("example.go", _GO), ("Example.cs", _CSHARP))
    }


def curls() -> list[str]:
    return [f"curl -s '{ADDRESS}{_path(each, f'{BASE}/')}'" for each in RESOURCES if each.name != "window"]


def _path(resource: Resource, base: str) -> str:
    """The path of a resource with the examples of its parameters."""
    given = [(each.name, each.example) for each in resource.parameters if each.example]
    if resource.name == "current":
        given.append(("final", "true"))
    return f"{base}{resource.name}" + (f"?{urlencode(given, safe='=')}" if given else "")


def _addresses() -> Iterable[str]:
    yield "| address | answer | parameters |"
    yield "| --- | --- | --- |"
    for each in RESOURCES:
        parameters = ", ".join(map(_parameter, each.parameters)) or "none"
        yield f"| `{BASE}/{each.name}` | {each.summary[:1].lower()}{each.summary[1:]} | {parameters} |"


def _parameter(parameter: Parameter) -> str:
    name = f"**`{parameter.name}`**" if parameter.is_required else f"`{parameter.name}`"
    if parameter.form == "whole":
        return f"{name} ({parameter.least:,} to {parameter.most:,}; {parameter.usual:,})"
    return f"{name}..." if parameter.is_repeated else name


def _problems() -> Iterable[str]:
    yield "| code | title |"
    yield "| --- | --- |"
    for code, title in TITLES.items():
        yield f"| `{code}` | {title} |"


def _curl() -> Iterable[str]:
    yield "```bash"
    yield from curls()
    yield f"curl -sN '{ADDRESS}{_path(BY_NAME['current'], f'{EVENTS}/')}'   # as it changes"
    yield "```"


def _programs() -> Iterable[tuple[str, list[str]]]:
    languages = {"java": "java", "go": "go", "cs": "csharp"}
    for name, each in programs().items():
        language = languages[name.rpartition(".")[2]]
        yield language, [f"```{language}", *each.splitlines(), "```"]


_JAVA = r"""import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;

// java Example.java          the newest final window
// java Example.java follow   each time it changes
public class Example {
  public static void main(String[] words) throws Exception {
    boolean follow = words.length > 0;
    String base = System.getenv().getOrDefault("TIDEMARK_URL", "ADDRESS");
    String path = follow ? "STREAM" : "PATH";
    HttpRequest request = HttpRequest.newBuilder(URI.create(base + path))
        .header("Authorization", "Bearer " + System.getenv().getOrDefault("TIDEMARK_TOKEN", ""))
        .build();
    var answer = HttpClient.newHttpClient().send(request, BodyHandlers.ofLines());
    if (answer.statusCode() != 200) {
      System.err.println(String.join("\n", answer.body().toList()));  // a problem, see below
      System.exit(1);
    }
    String[] event = {""};
    answer.body().forEach(line -> {
      if (!follow) System.out.println(line);
      else if (line.startsWith("event: ")) event[0] = line.substring(7);
      else if (line.startsWith("data: ") && event[0].equals("answer")) System.out.println(line.substring(6));
    });
  }
}
"""
_GO = r"""package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
)

type window struct {
	Key   string   `json:"key"`
	Start int64    `json:"start"`
	Count int64    `json:"count"`
	Mean  *float64 `json:"mean"` // left out if the view does not have it
	Final bool     `json:"final"`
}

// go run example.go          the newest final window
// go run example.go follow   each time it changes
func main() {
	base, follow := os.Getenv("TIDEMARK_URL"), len(os.Args) > 1
	if base == "" {
		base = "ADDRESS"
	}
	path := "PATH"
	if follow {
		path = "STREAM"
	}
	request, err := http.NewRequest("GET", base+path, nil)
	if err != nil {
		panic(err)
	}
	request.Header.Set("Authorization", "Bearer "+os.Getenv("TIDEMARK_TOKEN"))
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		panic(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		io.Copy(os.Stderr, answer.Body) // a problem, see below
		os.Exit(1)
	}
	if !follow {
		body, _ := io.ReadAll(answer.Body)
		show(body)
		return
	}
	event, lines := "", bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		if name, found := strings.CutPrefix(lines.Text(), "event: "); found {
			event = name
		} else if data, found := strings.CutPrefix(lines.Text(), "data: "); found && event == "answer" {
			show([]byte(data))
		}
	}
}

func show(document []byte) {
	var found window
	if err := json.Unmarshal(document, &found); err != nil {
		panic(err)
	}
	mean := "-"
	if found.Mean != nil {
		mean = fmt.Sprint(*found.Mean)
	}
	fmt.Println(found.Key, found.Start, found.Count, mean, found.Final)
}
"""
_CSHARP = r"""using System.Net.Http.Headers;
using System.Text.Json;

// dotnet run             the newest final window
// dotnet run -- follow   each time it changes
var follow = args.Length > 0;
var address = Environment.GetEnvironmentVariable("TIDEMARK_URL") ?? "ADDRESS";
using var http = new HttpClient { BaseAddress = new Uri(address), Timeout = Timeout.InfiniteTimeSpan };
http.DefaultRequestHeaders.Authorization =
    new AuthenticationHeaderValue("Bearer", Environment.GetEnvironmentVariable("TIDEMARK_TOKEN") ?? "");
var path = follow ? "STREAM" : "PATH";
using var answer = await http.GetAsync(path, HttpCompletionOption.ResponseHeadersRead);
if (!answer.IsSuccessStatusCode)
{
    Console.Error.WriteLine(await answer.Content.ReadAsStringAsync()); // a problem, see below
    return 1;
}
if (!follow)
{
    Show(await answer.Content.ReadAsStringAsync());
    return 0;
}
using var lines = new StreamReader(await answer.Content.ReadAsStreamAsync());
var name = "";
while (await lines.ReadLineAsync() is { } line)
{
    if (line.StartsWith("event: ")) name = line[7..];
    else if (line.StartsWith("data: ") && name == "answer") Show(line[6..]);
}
return 0;

static void Show(string document)
{
    var found = JsonDocument.Parse(document).RootElement;
    var mean = found.TryGetProperty("mean", out var value) ? value.GetDouble().ToString() : "-";
    Console.WriteLine($"{found.GetProperty("key")} {found.GetProperty("start")} {found.GetProperty("count")} {mean}");
}
"""

if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
