// validatorUrl: the page would otherwise ask a server of its makers' about the document.
SwaggerUIBundle({ url: "/openapi.json", dom_id: "#page", deepLinking: true, validatorUrl: null });
