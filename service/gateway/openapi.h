// The OpenAPI description of the HTTP API.
#ifndef SPARSEAGG_SERVICE_GATEWAY_OPENAPI_H_
#define SPARSEAGG_SERVICE_GATEWAY_OPENAPI_H_

#include <string>

namespace sparseagg::service {

// Returns: the description, OpenAPI 3.0 in JSON. It is made from the routes and from the messages of proto/, so it says
// what the server does.
const std::string& OpenApiDescription();

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_GATEWAY_OPENAPI_H_
