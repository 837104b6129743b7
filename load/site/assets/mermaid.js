/* `make site` replaces this file with Mermaid. */
